"""The text of a stand-alone script for one finding: torch and numpy, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from sortlib.generation import tensor_forms
from sortlib.grouping import Cause
from sortlib.platform import Platform
from sortlib.reproducing import code, pieces, shared
from sortlib.reproducing.values import HELPERS, source_of
from sortlib.runner import backward
from sortlib.runner.execution import PRECISION_FLAGS
from sortlib.thresholds import CLEARLY_WORSE, SIGMAS, SLOW_TIMES

CALLS = 20  # of a result that changes from call to call: one wrong call in ten is among them 7 times of 8
_OPTIONAL = ("env", "backends", "dtype", "memory_format", "compile", "threads", "python", "imports", "autocast")
_STANDARD = ("base64", "contextlib", "hashlib", "importlib", "math", "os", "subprocess", "sys", "tempfile", "time",
             "zlib")  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """What a script has to show.

    Attributes
    ----------
    cause : what went wrong and on which side.
    propagated : whether each side runs the whole chain on its own values, instead of the last call on the reference's.
    limit : for ``accuracy`` the error, in the output's unit, that rounding explains; for ``difference`` the
        difference that is tolerated.
    timeout : seconds after which a call counts as hanging.
    far : whether float64 itself has no number at infinity and its limit is the truth.
    shared : whether the outputs are not unique, and what every right result shares is compared.
    masked : whether each side draws its own mask, and what it keeps is compared.
    unsteady : whether the result changes from call to call, so that several are made.
    """

    cause: Cause
    propagated: bool = False
    limit: float = 0.0
    timeout: float = 60.0
    far: bool = False
    shared: bool = False
    masked: bool = False
    unsteady: bool = False


def write(draft, seeds, claim: Claim, reference: Platform, candidate: Platform, about: str) -> str:
    """The script.

    Parameters
    ----------
    draft : what is run; its last node is the one that the claim is about.
    seeds : of the random numbers of each node.
    about : the first paragraph, for people.
    """
    sides = _sides(reference, candidate, claim)
    apart = needs_processes(reference, candidate, claim)
    helpers = {name for value in draft.values.values() for name in value.helpers()}
    calls = _calls(draft, seeds, claim)
    parts = [*(HELPERS[name]() for name in sorted(helpers)), _inputs(draft), *calls, pieces.TENSORS, _place(sides)]
    parts += [pieces.SETTINGS] if any("backends" in side for side in sides.values()) else []
    parts += [pieces.AUTOCAST] if any("autocast" in side for side in sides.values()) else []
    gradients = _differentiated(draft) is not None
    compared = shared.function(draft, claim, gradients)
    parts += [*compared, *_running(sides, calls, apart, claim, gradients, bool(compared))]
    truth = "float64, at 1e30 instead of infinity" if claim.far else "float64"
    parts += [pieces.NUMBERS, pieces.filled(pieces.SHOW, {"TRUTH": truth}), pieces.SHOWN[_shown_as(claim.cause)]]
    parts.append(pieces.MAIN)
    parts.append(pieces.START_APART if apart else pieces.START)
    text = "\n\n\n".join(parts)
    constants = _constants(sides, claim, "DEVICE" in text, apart)
    if claim.cause.kind == "share":
        constants += f"\nSHARE = {shared.share(draft.nodes[-1])!r}  # to be dropped"
    if gradients:
        constants += f"\nDIFFERENTIATED = {_differentiated(draft)}  # inputs of the call that have a gradient"
        constants += f"\nSEED = {seeds[-1]}  # of the outputs' gradients"
    purpose = "Needs torch and numpy only. Exit status 0: the difference is there; 1: it is not."
    imports = _imports(f"{constants}\n{text}")
    return f'"""{about.strip()}\n\n{purpose}\n"""\n\n{imports}\n\n{constants}\n\n\n{text}\n'


def needs_processes(reference, candidate, claim) -> bool:
    """Whether a side can only be had in a process of its own."""
    dangerous = claim.cause.kind in ("crash", "hang")
    return dangerous or any(s.env or s.imports or s.python or s.threads for s in (reference, candidate))


def _shown_as(cause) -> str:
    kind = {"infinity": "nan", "crash": "ended", "hang": "ended", "exception": "ended"}.get(cause.kind, cause.kind)
    return f"{kind} both" if (kind, cause.side) == ("accuracy", "both") else kind


def _sides(reference, candidate, claim) -> dict:
    found = {}
    for name, platform in (("reference", reference), ("candidate", candidate)):
        form = platform.to_json()
        found[name] = {"name": platform.name, "device": platform.device}
        found[name] |= {key: form[key] for key in _OPTIONAL if form[key]}
    if claim.cause.kind == "config":
        flags = {**candidate.backends, **PRECISION_FLAGS}
        found["strict"] = {**found["candidate"], "name": f"{candidate.name}, full precision", "backends": flags}
    return found


def _imports(text) -> str:
    lines = [f"import {name}" for name in _STANDARD if re.search(rf"\b{name}\.", text)]
    lines += ["from functools import lru_cache"] if "lru_cache" in text else []
    lines += ["from pathlib import Path"] if "Path(" in text else []
    lines += ["", *(["import numpy as np"] if re.search(r"\bnp\.", text) else []), "import torch"]
    lines += ["import torch.nn.functional as F"] if re.search(r"\bF\.", text) else []
    return "\n".join(lines)


def _constants(sides, claim, device, apart) -> str:
    cause, lines = claim.cause, ["SIDES = {"]
    for name, side in sides.items():
        settings = [f"        {_quoted(key)}: {_quoted(value)}," for key, value in side.items()]
        lines += [f"    {_quoted(name)}: {{", *settings, "    },"]
    lines.append("}")
    if cause.kind in ("accuracy", "config"):
        lines.append(f"LIMIT = {claim.limit!r}  # the largest error that rounding explains in this call")
    if cause.kind == "difference":
        lines.append(f"LIMIT = {claim.limit!r}  # the largest difference that is tolerated")
    if cause.side in ("reference", "candidate"):
        other = "candidate" if cause.side == "reference" else "reference"
        lines += [f"WRONG = {_quoted(cause.side)}", f"OTHER = {_quoted(other)}"]
    if cause.kind == "accuracy" and cause.side != "both":
        lines.append(f"TIMES = {CLEARLY_WORSE:g}  # as large as the other side's must the error of the wrong one be")
    if claim.unsteady:
        lines.append(f"CALLS = {CALLS}  # on the same operands; the odd one counts")
    if cause.kind == "share":
        lines.append(f"SIGMAS = {SIGMAS:g}  # standard deviations of a binomial share that chance explains")
    if cause.kind == "slow":
        lines.append(f"TIMES = {SLOW_TIMES:g}  # as long as the other side must the slow one take")
    if cause.kind in ("exception", "crash", "hang"):
        lines.append(f"EXPECTED = {_quoted(cause.kind)}")
    lines += [f"TIMEOUT = {claim.timeout:g}  # seconds for one side"] if apart else []
    if device:
        lines.append('DEVICE = "cpu"  # of the side that runs')
    return "\n".join(lines)


def _quoted(value) -> str:
    """As ``repr``, with double quotes where that is the same."""
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')


def _differentiated(draft):
    """Which operands of the last call have a gradient, where its backward pass is judged too; else None."""
    last = draft.nodes[-1]
    if not getattr(last, "backward", False):
        return None
    order, places = [], []
    for name, form, _ in last.arguments:
        for path, leaf in tensor_forms(form, name):
            if str(leaf) not in order:
                order.append(str(leaf))
                if name not in backward._STATE and path not in last.frozen and _continuous(draft, leaf):
                    places.append(len(order) - 1)
    return places


def _continuous(draft, leaf) -> bool:
    if "$from" in leaf:
        return True
    dtype = getattr(torch, draft.values[leaf["$load"][0]].dtype)
    return dtype.is_floating_point or dtype.is_complex


def _inputs(draft) -> str:
    names = code.names_of(draft)
    lines = [f"    {name} = {draft.values[key].code()}" for key, name in names.items()]
    return "\n".join(["def inputs():", *lines, f"    return [{', '.join(names.values())}]"])


def _calls(draft, seeds, claim) -> list[str]:
    """The functions ``call``, ``exact`` (in float64, where that needs other words) and ``before``."""
    names, last = code.names_of(draft), len(draft.nodes) - 1

    def inner(form):
        return names[form["$load"][0]] if "$load" in form else f"tensors(v{form['$from'][0]})[{form['$from'][1]}]"

    def lines_of(nodes, wide=False, leaf=inner):
        return [f"    {line}" for place in nodes for line in code.statements(
            draft.nodes[place], leaf, "return" if place == last else f"v{place}", seeds[place], wide)]  # fmt: skip

    if last == 0 or claim.propagated:
        parameters = list(names.values())
        plain, wide = lines_of(range(last + 1)), lines_of(range(last + 1), wide=True)
        parts = []
    else:
        operands = {}

        def outer(form):
            name = names[form["$load"][0]] if "$load" in form else f"v{form['$from'][0]}_{form['$from'][1]}"
            operands[name] = form
            return name

        plain, wide = lines_of([last], leaf=outer), lines_of([last], wide=True, leaf=outer)
        parameters = list(operands)
        returned = ", ".join(inner(form) for form in operands.values())
        parts = ["\n".join([f"def before({', '.join(names.values())}):", *lines_of(range(last)),
                            f"    return [{returned}]"])]  # fmt: skip
    head = f"({', '.join(parameters)}):"
    parts.append("\n".join([f"def call{head}", *plain]))
    if wide != plain:
        parts.append("\n".join([f"def exact{head}", *wide]))
    return parts


def _place(sides) -> str:
    lines = ["def place(tensor, side):", '    """A tensor as this side takes it."""']
    if any("dtype" in side for side in sides.values()):
        lines += ['    if "dtype" in side and tensor.is_floating_point():',
                  '        tensor = tensor.to(getattr(torch, side["dtype"]))']  # fmt: skip
    lines.append('    tensor = tensor.to(side["device"])')
    if any("memory_format" in side for side in sides.values()):
        lines += ['    if "memory_format" in side and tensor.dim() == 4:',
                  "        tensor = tensor.contiguous(memory_format=torch.channels_last)"]  # fmt: skip
    return "\n".join([*lines, "    return tensor"])


def _running(sides, calls, apart, claim, gradients, compared) -> list[str]:
    """The functions that run the call on one side, and those that run it on all."""
    defined = " ".join(calls)
    compiled = any("compile" in side for side in sides.values())
    found, right = (pieces.filled(pieces.COMPARED, {"FOUND": text}) if compared else text
                    for text in (pieces.FOUND, pieces.RIGHT))  # fmt: skip
    found = pieces.filled(pieces.ODD, {"FOUND": found}) if claim.unsteady else found
    words = {
        "FOUND": found,
        "RIGHT": right,
        "DEVICE": '\n    global DEVICE\n    DEVICE = side["device"]' if "DEVICE" in defined else "",
        "SETTINGS": "settings(side), " if any("backends" in side for side in sides.values()) else "",
        "AUTOCAST": ", autocast(side)" if any("autocast" in side for side in sides.values()) else "",
        "FUNCTION": "function_of(side)" if compiled else "call",
        "FAR": ".clamp(-1e30, 1e30)" if claim.far else "",
        "EXACT": "exact" if "def exact(" in defined else "call",
    }
    before = "def before(" in defined
    parts = [pieces.COMPILED] if compiled else []
    parts += [pieces.ODD_ONE] if claim.unsteady else []
    if gradients:
        parts += [source_of("upstream_of", module=backward), pieces.GRADIENTS]
    else:
        parts.append(pieces.TIMED if claim.cause.kind == "slow" else pieces.RESULTS)
    parts += [pieces.filled(text, words) for text in (pieces.RUN, pieces.WIDE, pieces.TRUTH)]
    parts += [pieces.filled(pieces.PREPARE, words)] if before else []
    first = "prepare(inputs())" if before else "inputs()"
    parts.append(pieces.APART if apart else pieces.filled(pieces.HERE, {"OPERANDS": first}))
    if apart:
        optional = [text for key, text in pieces.ONLY_APART.items() if any(key in side for side in sides.values())]
        words = {"OPTIONAL": "".join(optional), "PREPARED": pieces.PREPARED if before else ""}
        parts.append(pieces.filled(pieces.WORK, words))
    return parts
