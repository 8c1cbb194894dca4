"""What a platform's settings are worth: which of the paper's 15 APIs give other bits than plain ``cpu`` (issue D).

One call of each API, with the shapes of a small vision transformer and a residual network, on inputs drawn from a seed.
The reference runs once and leaves a bundle, with which each platform is compared.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from sortlib.apis import PAPER_APIS, paper_name
from sortlib.baselines.single_api import single_api_patterns
from sortlib.errors import SortError
from sortlib.generation import generate
from sortlib.platform import parse
from sortlib.runner import bundle
from sortlib.tracing import Tracer

_TIMEOUT = 300  # seconds for one call; a compiler may be at work
_known = {}  # platform, as text -> what was measured in this process


def measure(names: list[str], own: dict | None = None, progress: bool = True) -> dict[str, dict]:
    """Compare one call of each API on platforms with plain ``cpu``.

    Parameters
    ----------
    names : platforms that this machine has.
    own : further named platforms, as ``sortlib.platform.parse`` takes them.
    progress : show a progress bar.

    Returns
    -------
    dict
        Platform -> ``differs`` and ``equal`` (tuples of API names in the paper's spelling) and ``failed`` (API -> why
        it gave no result). What was measured in this process is not measured again.
    """
    found, folder = {}, None
    with ExitStack() as stack, tqdm(names, desc="worth", unit="platform", disable=not progress) as bar:
        for name in bar:
            bar.set_postfix_str(name)
            platform = parse(name, own)
            key = json.dumps(platform.to_json())
            if key not in _known:
                if folder is None:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sortlib-worth-")))
                    bundle.save(calls(), folder / "bundle", "cpu", _TIMEOUT, lowered=True, progress=False)
                _known[key] = _compared(folder, platform, len(_known))
            found[name] = _known[key]
    return found


def describe(row: dict) -> list[str]:
    """Lines for people about a row of ``sl.platforms(worth=True)``."""
    count = len(row["differs"]) + len(row["equal"])
    lines = [f"differs from cpu in {len(row['differs'])} of {count} APIs" + (": " + ", ".join(row["differs"])
             if row["differs"] else "")] if count else []  # fmt: skip
    return lines + [f"{api}: {reason}" for api, reason in row["failed"].items()]


def calls() -> list:
    """One case for each of the 15 APIs."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape, scale=1.0):
        return torch.randn(shape, generator=draw) * scale

    def model(image, tokens):
        x = F.conv2d(image, normal(64, 32, 3, 3, scale=0.06), normal(64, scale=0.1), padding=1)
        x = F.batch_norm(x, normal(64, scale=0.1), normal(64).abs() + 0.5, normal(64), normal(64))
        x = F.max_pool2d(F.relu(x), 3, 2, 1)
        x = torch.flatten(F.adaptive_avg_pool2d(x + x.flip(0), (1, 1)), 1)
        y = F.layer_norm(tokens, (192,), normal(192), normal(192))
        y = F.linear(y, normal(64, 192, scale=0.07), normal(64, scale=0.1))
        scores = torch.softmax(torch.matmul(y, y.transpose(-2, -1)) / 8, -1)
        return F.dropout(F.gelu(torch.matmul(scores, y) * x.unsqueeze(1)), 0.1, training=False)

    with torch.no_grad():
        graph, records = Tracer("worth").run(model, normal(2, 32, 56, 56), normal(2, 196, 192))
    return generate(single_api_patterns([graph], list(PAPER_APIS)), records, [graph], per_pattern=1)


def _compared(folder, platform, number) -> dict:
    try:
        rows = bundle.against(folder / "bundle", platform, out=folder / str(number), progress=False)
    except SortError as error:
        return {"differs": (), "equal": (), "failed": {"all": str(error)}}
    differs, equal, failed = [], [], {}
    for row in rows:
        api = paper_name(row["api"])
        if row["status"] != "ok":
            failed[api] = f"{row['status']}: {row['message']}"
        elif row["local_differing"] or row["candidate_dtype"] != row["reference_dtype"]:
            differs.append(api)
        else:
            equal.append(api)
    return {"differs": tuple(differs), "equal": tuple(equal), "failed": failed}
