"""The issue text of a finding, in the form of PyTorch's bug report template (bug-report.yml)."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
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


_DEVICES = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}
# The second opinion in words for those who do not know this package.
_OPINIONS = {
    "the decomposition in float64 agrees with float64": "a second float64 result, from the same call taken apart into "
    "elementary operations, agrees with the first",
    "but the decomposition in float64 gives another result": "but a second float64 result, from the same call taken "
    "apart into elementary operations, differs from the first",
}
_TIMES = re.compile(r"(?P<times>\S+|infinitely many) times (?P<what>the [^,;]+)")


def title(draft, row, target, reference, candidate) -> str:
    """One line that names the API, what it does, and where.

    Parameters
    ----------
    draft : what the script runs.
    row, target : the judged row that it repeats, and what a smaller case has to keep of it.
    reference, candidate : ``Platform``s.
    """
    platforms = dict(zip(SIDES, (reference, candidate), strict=True))
    cause = target.cause
    if cause.side in SIDES:
        where = place_of(platforms[cause.side])
    else:
        where = " and ".join(dict.fromkeys(map(place_of, platforms.values())))
    if cause.kind == "config":
        where = place_of(candidate)
    return f"{_called(draft.nodes[-1])} {_does(row, cause)} on {where}"


def summary(draft, row, target, reference, candidate) -> str:
    """``title`` as the first paragraph of a docstring."""
    words = title(draft, row, target, reference, candidate).replace("\\", "/").replace('"', "'")
    return textwrap.fill(f"{words}.", 100)


def _called(node) -> str:
    """The API as people write it."""
    return node.target.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")


def _does(row, cause) -> str:
    """What an API does wrong, as the verb of a sentence."""
    worst = str(row.get("worst_output") or "")
    result = f"a wrong {worst}" if worst.startswith("gradient") else "a wrong result"
    detail = f" ({cause.detail})" if cause.detail else ""
    if cause.kind in ("nan", "infinity") and "are numbers where float64 is NaN" in str(row["reason"]):
        return "gives a number where NaN is right"
    return {
        "config": "gives a result of reduced precision",
        "nan": "gives NaN",
        "infinity": "gives an infinity",
        "form": f"returns a result of another form{detail}",
        "exception": f"raises {cause.detail or 'an exception'}",
        "crash": f"crashes{detail}",
        "hang": "hangs",
        "slow": "is slow",
        "difference": "gives different results",
    }.get(cause.kind, f"gives {result}")


def place_of(platform) -> str:
    """A platform in plain words: its device and the settings that are not PyTorch's own."""
    device = _DEVICES.get(platform.device, f"the out-of-tree device {platform.device}")
    settings = [f"{name}={value}" for name, value in platform.env.items() if name != "PYTHONPATH"]
    settings += [f"torch.backends.{name} = {value}" for name, value in platform.backends.items()]
    settings += [f"inputs in {platform.dtype}"] if platform.dtype else []
    settings += [f"inputs in {platform.memory_format} memory format"] if platform.memory_format else []
    settings += [f"autocast to {platform.autocast}"] if platform.autocast else []
    settings += ["torch.compile"] if platform.compile else []
    settings += [f"{platform.threads} thread{'s' * (platform.threads > 1)}"] if platform.threads else []
    settings += ["another Python interpreter"] if platform.python else []
    return device + (f" with {', '.join(settings)}" if settings else "")


def plain(reason) -> str:
    """A reason of the rule of evidence in words for those who do not know this package, every figure once."""
    return "; ".join(_OPINIONS.get(part, _once(part)) for part in str(reason).split("; "))


def _once(part) -> str:
    """Equal multiples of several limits as one."""
    found = list(_TIMES.finditer(part))
    times = {match["times"] for match in found}
    if len(found) < 2 or len(times) > 1:
        return part
    return f"{part[: found[0].start()]}{times.pop()} times what rounding explains{part[found[-1].end() :]}"


def text(made, code, row, target, draft, reference, candidate) -> str:
    """The Markdown of an issue.

    Parameters
    ----------
    made : the ``Reproducer``.
    code : the script's text.
    row : the judged row that the script repeats.
    draft : what the script runs.
    """
    parts = [f"# {title(draft, row, target, reference, candidate)}"]
    if not made.reproduces:
        parts.append("**The script below did not show the difference when it was run; do not file this.**")
    parts += ["### 🐛 Describe the bug", _what(row, target, draft, reference, candidate)]
    parts += [f"```python\n{code.strip()}\n```", "Output:", f"```\n{made.output}\n```"]
    parts += ["#### Why this is wrong", f"{_WHY[target.cause.kind]}\n\n{_sentence(plain(row['reason']))}"]
    parts += ["#### What makes it vanish", _vanish(made)]
    parts += ["#### Where it was found", _where(draft)]
    parts += ["### Versions", f"```\n{versions()}\n```"]
    return "\n\n".join(parts) + "\n"


def _what(row, target, draft, reference, candidate) -> str:
    parts = [f"{title(draft, row, target, reference, candidate)}."]
    if len(draft.nodes) > 1:
        parts.append(f"It is the last of {len(draft.nodes)} calls ({', '.join(node.api for node in draft.nodes)}).")
    sides = [f"its {side} is `{platform.name}` ({platform.what or platform.device})"
             for side, platform in zip(SIDES, (reference, candidate), strict=True)]  # fmt: skip
    parts.append(f"The script compares two sides: {', '.join(sides)}.")
    return " ".join(parts)


def _sentence(words) -> str:
    words = str(words).strip()
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _vanish(made) -> str:
    if not made.gone:
        return "No setting that was tried makes it vanish."
    if len(made.gone) == 1:
        return f"The difference is gone {made.gone[0]}."
    return "The difference is gone in each of these runs:\n\n" + "\n".join(f"- {label}" for label in made.gone)


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
