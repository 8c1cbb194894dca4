"""The text of a stand-alone script for one finding: torch, numpy and what a platform imports, and nothing else."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

import torch

from sortlib.grouping import SIDES, Cause
from sortlib.platform import Platform
from sortlib.reproducing import code, pieces, shared
from sortlib.reproducing.draft import differentiated
from sortlib.reproducing.source import source_of
from sortlib.reproducing.values import HELPERS
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
    # The seconds of a slow call are those of its result alone.
    gradients = differentiated(draft) if claim.cause.kind != "slow" else {}
    compared = shared.function(draft, claim, bool(gradients))
    parts += [*compared, *_running(draft, sides, calls, apart, claim, gradients, bool(compared))]
    parts += [*_showing(draft, claim, gradients), pieces.SHOWN[_shown_as(claim.cause)], pieces.MAIN]
    parts.append(pieces.START_APART if apart else pieces.START)
    text = "\n\n\n".join(_used(parts))
    constants = _constants(sides, claim, "DEVICE" in text, apart)
    if claim.cause.kind == "share":
        constants += f"\nSHARE = {shared.share(draft.nodes[-1])!r}  # to be dropped"
    if gradients:
        named = ", ".join(f"{place}: {_quoted(name)}" for place, name in gradients.items())
        constants += f"\nDIFFERENTIATED = {{{named}}}  # place of an input of the call that has a gradient: its name"
        constants += f"\nSEED = {seeds[-1]}  # of the outputs' gradients"
    imports = _imports(f"{constants}\n{text}")
    status = "Exit status 0: the difference is there; 1: it is not."
    purpose = "\n".join([*_needs(imports, reference, candidate), status])
    return f'"""{about.strip()}\n\n{purpose}\n"""\n\n{imports}\n\n{constants}\n\n\n{text}\n'


def _needs(imports, *platforms) -> list[str]:
    """Sentences on what has to be installed."""
    modules = list(dict.fromkeys(module for platform in platforms for module in platform.imports))
    packages = ["torch", *(["numpy"] if "import numpy" in imports else [])]
    if modules:
        packages.append(f"the module{'s' * (len(modules) > 1)} {_listed(modules)}")
    lines = [f"Needs {_listed(packages)}{'' if modules else ' only'}."]
    lines += [f"The side {platform.name} is run by {platform.python}, which needs them too."
              for platform in platforms if platform.python]  # fmt: skip
    return lines


def _listed(names) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _used(parts) -> list[str]:
    """Without functions that no other part mentions."""
    trees = [ast.parse(part) for part in parts]
    while True:
        named = [{node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} for tree in trees]
        kept = [place for place, tree in enumerate(trees) if not _alone(tree)
                or any(_alone(tree) in names for other, names in enumerate(named) if other != place)]  # fmt: skip
        if len(kept) == len(parts):
            return parts
        parts, trees = [parts[place] for place in kept], [trees[place] for place in kept]


def _alone(tree) -> str:
    """The name of the function that is all of a part, or nothing."""
    (first, *more) = tree.body
    return first.name if isinstance(first, ast.FunctionDef) and not more else ""


def needs_processes(reference, candidate, claim) -> bool:
    """Whether a side can only be had in a process of its own."""
    dangerous = claim.cause.kind in ("crash", "hang")
    return dangerous or any(s.env or s.imports or s.python or s.threads for s in (reference, candidate))


def _shown_as(cause) -> str:
    kind = {"infinity": "nan", "crash": "ended", "hang": "ended", "exception": "ended"}.get(cause.kind, cause.kind)
    return f"{kind} both" if cause.side not in SIDES and kind in ("accuracy", "nan", "ended") else kind


def _with_truth(cause) -> bool:
    """Whether float64 says more than the two sides do."""
    return cause.kind not in ("crash", "hang", "exception", "slow", "share", "form")


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
    if cause.side in SIDES:
        other = "candidate" if cause.side == "reference" else "reference"
        lines.append(f"WRONG = {_quoted(cause.side)}")
        lines += [f"OTHER = {_quoted(other)}"] if cause.kind != "share" else []
    if cause.kind == "accuracy" and cause.side != "both":
        lines.append(f"TIMES = {CLEARLY_WORSE:g}  # as large as the other side's must the error of the wrong one be")
    if claim.unsteady:
        lines.append(f"CALLS = {CALLS}  # on the same operands; the odd one counts")
    if cause.kind == "share":
        lines.append(f"SIGMAS = {SIGMAS:g}  # standard deviations of a binomial share that chance explains")
    if cause.kind == "slow":
        lines.append(f"TIMES = {SLOW_TIMES:g}  # as long as the other side must the slow one take")
    if cause.kind in ("exception", "crash", "hang"):
        lines.append(f"EXPECTED = {_quoted('error' if cause.kind == 'exception' else cause.kind)}")
    lines += [f"TIMEOUT = {claim.timeout:g}  # seconds for one side"] if apart else []
    if device:
        lines.append('DEVICE = "cpu"  # of the side that runs')
    return "\n".join(lines)


def _quoted(value) -> str:
    """As ``repr``, with double quotes where that is the same."""
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')


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
    moved, plain = 'tensor.to(side["device"])', True
    if any("dtype" in side for side in sides.values()):
        lines += ['    if "dtype" in side and tensor.is_floating_point():',
                  '        tensor = tensor.to(getattr(torch, side["dtype"]))']  # fmt: skip
    if any("memory_format" in side for side in sides.values()):
        plain = False
        lines += [f"    tensor = {moved}", '    if "memory_format" in side and tensor.dim() == 4:',
                  "        tensor = tensor.contiguous(memory_format=torch.channels_last)"]  # fmt: skip
    return "\n".join([*lines, f"    return {moved if plain else 'tensor'}"])


# In names of what makes complex numbers from real ones.
_COMPLEX = re.compile(r"complex|cfloat|cdouble|chalf|polar|fft|\beig(vals)?\b")


def _complex(draft) -> bool:
    """Whether a result may be complex; yes in doubt."""
    told = [[node.api, node.target, node.arguments] for node in draft.nodes]
    given = [value.dtype for value in draft.values.values()]
    return bool(_COMPLEX.search(f"{told} {given}".lower()))


def _wide(draft, claim) -> dict:
    """What the function that makes operands float64 has to tell apart."""
    # What earlier calls hand on is known only when they are run.
    known = [getattr(torch, value.dtype) for value in draft.values.values()]
    known = known if len(draft.nodes) == 1 or claim.propagated else []
    complex_ = not known or any(dtype.is_complex for dtype in known)
    others = not known or any(not dtype.is_floating_point and not dtype.is_complex for dtype in known)
    return {"COMPLEX": pieces.WIDE_COMPLEX if complex_ else "", "FAR": ".clamp(-1e30, 1e30)" if claim.far else "",
            "OTHERS": pieces.WIDE_OTHERS if others else ""}  # fmt: skip


def _showing(draft, claim, gradients) -> list[str]:
    """The functions that print what every side returned."""
    truth = "float64, at 1e30 instead of infinity" if claim.far else "float64"
    title = pieces.filled(pieces.SIDE_OR_TRUTH, {"TRUTH": truth}) if _with_truth(claim.cause) else pieces.SIDE
    numbers = pieces.filled(pieces.NUMBERS, {"COMPLEX": pieces.NUMBERS_COMPLEX if _complex(draft) else ""})
    word, more = shared.words(claim, bool(gradients))
    if gradients and not more and word == "output":
        more = '[f"gradient of {name}" for name in DIFFERENTIATED.values()]'
    if claim.cause.kind == "slow":
        more = '["seconds"]'
    labels = pieces.filled(pieces.LABELS_AND_MORE if more else pieces.LABELS, {"WORD": word, "MORE": more})
    return [numbers, pieces.DISTANCE, labels, pieces.filled(pieces.SHOW, {"TITLE": title})]


def _running(draft, sides, calls, apart, claim, gradients, compared) -> list[str]:
    """The functions that run the call on one side, and those that run it on all."""
    defined = " ".join(calls)

    def used(setting):
        return any(setting in side for side in sides.values())

    slow = claim.cause.kind == "slow"
    found, right = (pieces.FOUND, pieces.RIGHT)
    if gradients or slow:
        found, right = (pieces.FOUND_BY_RESULTS, pieces.RIGHT_BY_RESULTS)
    if compared:
        found, right = (pieces.filled(pieces.COMPARED, {"FOUND": text}) for text in (found, right))
    found = pieces.filled(pieces.ODD, {"FOUND": found}) if claim.unsteady else found
    words = {
        "FOUND": found,
        "RIGHT": right,
        "DEVICE": '\n    global DEVICE\n    DEVICE = side["device"]' if "DEVICE" in defined else "",
        "SETTINGS": "settings(side), " if used("backends") else "",
        "AUTOCAST": ", autocast(side)" if used("autocast") else "",
        "FUNCTION": "function_of(side)" if used("compile") else "call",
        "EXACT": "exact" if "def exact(" in defined else "call",
    }
    before, truth = "def before(" in defined, _with_truth(claim.cause)
    parts = [pieces.COMPILED] if used("compile") else []
    parts += [pieces.ODD_ONE] if claim.unsteady else []
    if gradients:
        settled = {"kind": "drawn", **({} if _complex(draft) else {"output.is_complex()": False})}
        parts += [source_of("upstream_of", module=backward, settled=settled), pieces.GRADIENTS]
    parts += [pieces.TIMED] if slow else []
    parts.append(pieces.filled(pieces.RUN, words))
    if truth:
        parts += [pieces.filled(pieces.WIDE, _wide(draft, claim)), pieces.filled(pieces.TRUTH, words)]
    parts += [pieces.filled(pieces.PREPARE, words)] if before else []
    also = " and of float64" if truth else ""
    if not apart:
        first, results = "prepare(inputs())" if before else "inputs()", pieces.ALL if truth else pieces.SIDES_ONLY
        return [*parts, pieces.filled(pieces.HERE, {"AND_TRUTH": also, "OPERANDS": first, "RESULTS": results})]
    python, env = used("python"), used("env")
    parts.append(pieces.filled(pieces.APART, {
        "AND_TRUTH": also,
        "EACH": "name, side in SIDES.items()" if python or env else "name in SIDES",
        "PYTHON": 'side.get("python", sys.executable)' if python else "sys.executable",
        "ENV": 'env={**os.environ, **side.get("env", {})}, ' if env else "",
        "TRUTH": pieces.READ_TRUTH if truth else "",
    }))  # fmt: skip
    optional = [text for key, text in pieces.ONLY_APART.items() if used(key)]
    words = {"OPTIONAL": "".join(optional), "PREPARED": pieces.PREPARED if before else "",
             "TRUTH": pieces.WRITE_TRUTH if truth else ""}  # fmt: skip
    return [*parts, pieces.filled(pieces.WORK, words)]
