"""The issue text of a finding, in the form of PyTorch's bug report template (bug-report.yml)."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

from sortlib.grouping import SIDES

_WHY = {
    "accuracy": "The two results cannot both be right, and the float64 result of the same call on the same inputs "
    "says which one is wrong.",
    "config": "The difference is that of a reduced-precision setting: it is gone in full precision.",
    "nan": "A result without a number where the inputs hold none of that kind, or where the other side has a number.",
    "infinity": "An infinity where the other side has a number.",
    "values": "The results are whole numbers or booleans, which no rounding changes.",
    "share": "The number of dropped elements follows a binomial distribution, in which a share so far from p does not "
    "occur by chance.",
    "form": "Both sides get equal inputs, and a call's shape and dtype do not depend on the device.",
    "exception": "The other side returns a result for the same inputs.",
    "crash": "The process ended, and ended again in a fresh one; the other side returns.",
    "slow": "The results are the same; only the time is not.",
    "hang": "The call did not return; the other side needs far less time.",
    "difference": "The two results differ by more than the tolerated difference.",
}


def summary(row, target) -> str:
    """One sentence: what is wrong, where, and by how much."""
    return (f"{row['api']} on {row['candidate']} against {row['reference']}: {target.cause}.\n\n"
            f"{_wrapped(row['reason'])}")  # fmt: skip


def _wrapped(text) -> str:
    import textwrap

    # The text becomes part of a docstring.
    return textwrap.fill(str(text).replace("\\", "/").replace('"""', "'''"), 100)


def text(made, code, row, target, draft, reference, candidate) -> str:
    """The Markdown of an issue.

    Parameters
    ----------
    made : the ``Reproducer``.
    code : the script's text.
    row : the judged row that the script repeats.
    draft : what the script runs.
    """
    parts = [f"# {row['api']}: {target.cause} ({candidate.name} against {reference.name})"]
    if not made.reproduces:
        parts.append("**The script below did not show the difference when it was run; do not file this.**")
    parts += ["### 🐛 Describe the bug", _what(row, target, draft, reference, candidate)]
    parts += [f"```python\n{code.strip()}\n```", "Output:", f"```\n{made.output}\n```"]
    parts += ["#### Why this is wrong", "\n".join([_WHY[target.cause.kind], *_numbers(row)])]
    parts += ["#### What makes it vanish", _vanish(made)]
    parts += ["#### Where it was found", _where(draft)]
    parts += ["### Versions", f"```\n{versions()}\n```"]
    return "\n\n".join(parts) + "\n"


def _what(row, target, draft, reference, candidate) -> str:
    count = len(draft.nodes)
    pattern = "" if count == 1 else f" as the last of {count} calls ({', '.join(node.api for node in draft.nodes)})"
    sides = "; ".join(f"the {side} is `{platform.name}`: {platform.what or platform.device}"
                      for side, platform in zip(SIDES, (reference, candidate), strict=True))  # fmt: skip
    return f"`{draft.nodes[-1].target}`{pattern}: {target.cause}. {_sentence(sides)} {_sentence(row['reason'])}"


def _sentence(words) -> str:
    words = str(words).strip()
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _numbers(row) -> list[str]:
    lines = []
    for side in SIDES:
        error = row.get(f"{side}_error")
        if error is not None and error == error:
            ratio = row.get(f"{side}_own_ratio")
            known = ratio is not None and ratio == ratio
            beyond = f", {ratio:.3g} times what rounding of the result explains" if known else ""
            lines.append(f"- largest error of the {side} against float64: {error:.3g}{beyond}")
    difference = row.get("local_max_abs")
    if difference is not None and difference == difference:
        lines.append(f"- largest difference of the two: {difference:.3g}")
    return ["", *lines] if lines else []


def _vanish(made) -> str:
    if made.gone:
        return "The script shows no difference with:\n\n" + "\n".join(f"- {label}" for label in made.gone)
    return "No setting that was tried makes it vanish."


def _where(draft) -> str:
    node = draft.nodes[-1]
    graph, _, call = node.record
    if not graph:
        return "A single call was checked."
    place = f"call {call} of the model `{graph}`, module `{node.module_path or '(top)'}`, {node.source or 'no source'}"
    return f"The inputs were made like those of {place}, and made smaller and simpler while the difference stayed."


@lru_cache
def versions() -> str:
    """What ``python -m torch.utils.collect_env`` says, or why it said nothing."""
    command = [sys.executable, "-m", "torch.utils.collect_env"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "torch.utils.collect_env did not answer"
    return done.stdout.removeprefix("Collecting environment information...").strip()
