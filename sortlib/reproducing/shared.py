"""What a script compares where equal inputs may give different outputs: factors up to signs, positions of equal values,
and what two different masks both keep.

The script then puts a function ``compared`` between the outputs and the comparison, for every side and for float64.
"""

from __future__ import annotations

from sortlib.reproducing import code
from sortlib.reproducing.draft import tensors_of
from sortlib.reproducing.source import source_of
from sortlib.runner import invariants

_DEFAULT = 0.5  # the share that PyTorch's dropouts drop if none is given


def function(draft, claim, gradients: bool) -> list[str]:
    """The function ``compared`` and what it needs, as parts of a script; empty where outputs are compared as they are.

    Parameters
    ----------
    draft : what is run; the last node is the one in question.
    claim : ``script.Claim``.
    gradients : whether the gradients of its inputs follow its outputs.
    """
    last = draft.nodes[-1]
    if claim.shared:
        needed, reader = invariants.source_names(last.api)
        return [source_of("_plain", *needed, module=invariants), _by_invariants(draft, reader)]
    if not claim.masked:
        return []
    return [_share_of_zeros(draft) if claim.cause.kind == "share" else _kept(draft, gradients)]


def words(claim, gradients: bool) -> tuple[str, str]:
    """What a script calls the tensors that it compares: (a word for them, the text of a list of words for the last).

    Parameters
    ----------
    claim, gradients : as in ``function``.
    """
    if claim.shared:
        return "what every right result shares", ""
    if not claim.masked:
        return "output", ""
    if claim.cause.kind == "share":
        return "share that was dropped, of how many", ""
    rest = "minus what it should be, where it was kept"
    return f"output {rest}", f'["gradient {rest}"]' if gradients else ""


def share(node) -> float:
    """The share that a dropout is to drop."""
    return next((float(form) for name, form, _ in node.arguments if name == "p"), _DEFAULT)


def operands(draft, names) -> dict:
    """Name of every operand of the last call, in the order in which a script hands them over -> its form.

    Parameters
    ----------
    names : of ``code.names_of``.
    """
    found = {}
    for form in tensors_of(draft.nodes[-1]):
        found[_name(form, names)] = form
    return found


def _name(form, names):
    return names[form["$load"][0]] if "$load" in form else f"v{form['$from'][0]}_{form['$from'][1]}"


def _by_invariants(draft, reader) -> str:
    names, last = code.names_of(draft), draft.nodes[-1]
    order = list(operands(draft, names))
    given = ", ".join(f'"{name}": {code.text(form, lambda leaf: _name(leaf, names))}'
                      for name, form, kind in last.arguments if kind != "variadic")  # fmt: skip
    return "\n".join([
        "def compared(outputs, operands):",
        '    """What every right result shares, in float64: signs, order and the choice among equals are free."""',
        f"    {', '.join(order)}{',' * (len(order) == 1)} = map(_plain, operands)",
        f"    found = {reader}({order[0]}, {{{given}}}, [_plain(output) for output in outputs])",
        "    return [values for values, _ in found]",
    ])  # fmt: skip


def _input(draft) -> int:
    """The place of a dropout's input among the operands."""
    names = code.names_of(draft)
    form = next(form for name, form, _ in draft.nodes[-1].arguments if name == "input")
    return list(operands(draft, names)).index(_name(form, names))


def _kept(draft, gradients) -> str:
    scale = f"{1 - share(draft.nodes[-1])!r}"
    lines = [
        "def compared(outputs, operands):",
        '    """What was kept, minus the input over 1 - p; zero where it was dropped, so that any mask will do."""',
        f"    pairs = [(outputs[0], operands[{_input(draft)}])]",
    ]
    if gradients:
        lines.append('    pairs.append((outputs[-1], upstream_of(outputs[0], f"{SEED}/0")))')
    lines += [
        "    pairs = [(kept.double(), whole.double()) for kept, whole in pairs]",
        f"    return [torch.where(kept != 0, kept - whole / {scale}, 0.0) for kept, whole in pairs]",
    ]
    return "\n".join(lines)


def _share_of_zeros(draft) -> str:
    return "\n".join([
        "def compared(outputs, operands):",
        '    """The share of elements that was dropped, and of how many."""',
        f"    dropped = outputs[0][operands[{_input(draft)}] != 0] == 0",
        "    return [torch.tensor([float(dropped.double().mean()), dropped.numel()], dtype=torch.float64)]",
    ])  # fmt: skip
