"""What the rule of evidence says of thousands of calls of PyTorch's own kernels: every suspect must be a real defect.

Calls come from two places: PyTorch's operator database (``torch.testing._internal.common_methods_invocations.op_db``:
some 600 operators with their own sample inputs; needs the package expecttest), and ``RULES`` below (forms that models
use, over layouts, sizes and ranges of values). Each call is judged on ``cpu`` against ``cpu:baseline``.

    python tests/benchmarks/false_alarms.py [--samples 4] [--dtypes float32 float16 bfloat16] [--only NAME ...]
        [--source all|database|rules] [--candidate PLATFORM] [--out rows.parquet]

Prints one JSON line for each figure and one for each suspect with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections import Counter

import numpy as np
import torch

from sortlib.checking import _case
from sortlib.errors import SortError
from sortlib.grouping import accuses
from sortlib.judging import judge
from sortlib.runner.campaign import campaign
from sortlib.runner.execution import tensors_in
from sortlib.runner.transport import exchange_folder

GROUP = 200  # cases whose inputs lie in memory at one time
LARGEST = 1 << 20  # elements of an input: the database's largest samples test shapes, not values
LABEL = ("text", "dtype", "layout", "kind")
SHOWN = ("suspect", "both-suspect", "nan", "config", "crash", "timeout", "exception", "slow", "unconfirmed")

# Findings that were looked at by hand and are real: (API, dtype, layout, kind of input) -> what is wrong. Nothing else
# of these APIs is excused.
_ONE_PASS = "channels-last kernels compute the variance in one pass (PyTorch issue 121651)"
_SQUARES = "squares in float16, which overflow"
_EXP = "exp in float16, which overflows from 11.1 on where the loss is 11.1"
ROW_LAYOUTS = ("contiguous", "transposed", "expanded")
_OTHER_DTYPES = ("float16", "bfloat16", "float64")
KNOWN = {
    ("batch_norm", "float32", "channels last", "shifted by 1e3"): _ONE_PASS,
    ("batch_norm", "float32", "channels last", "in steps of 1/4"): _ONE_PASS,
    ("group_norm", "float32", "channels last", "shifted by 1e3"): f"{_ONE_PASS}: 2.4 off at a spread of 1",
    ("lp_pool2d", "float16", "contiguous", "times 1e-4"): "squares in float16, which underflow",
    ("lp_pool2d", "float16", "contiguous", "times 1e3"): _SQUARES,
    ("lp_pool2d", "float16", "contiguous", "shifted by 1e3"): _SQUARES,
    ("soft_margin_loss", "float16", "as given", ""): _EXP,
    ("soft_margin_loss", "float16", "strided", ""): _EXP,
    ("cov", "float16", "contiguous", "times 1e3"): "sums of products overflow in float16 before they are divided",
    **{
        (
            api,
            dtype,
            layout,
            "with infinities",
        ): "NaN at an infinity, whose limit is a number (PyTorch issue 185770)"
        for api in ("gelu", "hardswish", "mish", "silu")
        for dtype, layouts in (("float32", ROW_LAYOUTS), *((d, ROW_LAYOUTS[:1]) for d in _OTHER_DTYPES))
        for layout in layouts
    },
    **{
        ("matrix_exp", dtype, layout, ""): "no half precision: NaN or 1e30 already for a matrix of norm 0.4"
        for dtype in ("float16", "bfloat16")
        for layout in ("as given", "strided")
    },
}


def database(dtypes, samples, only, noncontiguous=True):
    """(label, function, inputs) of PyTorch's operator database; a label is as in ``rules``."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as error:
        sys.exit(f"PyTorch's operator database needs the package {error.name}: pip install {error.name}, "
                 "or choose --source rules")  # fmt: skip
    from torch.testing._internal.common_utils import noncontiguous_like

    for op in op_db:
        if only and not any(name == op.name or name == op.full_name for name in only):
            continue
        for name in dtypes:
            dtype = getattr(torch, name)
            if dtype not in op.dtypes:
                continue
            torch.manual_seed(0)
            try:
                found = [s for s in op.sample_inputs("cpu", dtype) if _small(s)]
            except Exception as error:
                print(f"no samples of {op.full_name} {name}: {type(error).__name__}", file=sys.stderr)
                continue
            step = max(1, len(found) // samples)
            for number, sample in enumerate(found[::step][:samples]):
                strided = noncontiguous and number % 2 == 1
                if strided:
                    with contextlib.suppress(Exception):
                        sample = sample.transform(
                            lambda x: noncontiguous_like(x) if isinstance(x, torch.Tensor) else x)  # fmt: skip
                tensors = tensors_in([sample.input, list(sample.args), dict(sample.kwargs)])
                label = (f"{op.full_name} sample {number * step}", name, "strided" if strided else "as given", "")
                yield label, _bound(op.op, sample), {f"t{k}": t for k, t in enumerate(tensors)}


def _small(sample):
    tensors = tensors_in([sample.input, list(sample.args), dict(sample.kwargs)])
    return all(type(t) is torch.Tensor and t.layout == torch.strided and t.numel() <= LARGEST for t in tensors)


def _bound(function, sample):
    def call(**_):
        return function(sample.input, *sample.args, **sample.kwargs)

    return call


def verdicts(entries, reference, candidate, timeout=60, log=None):
    """A DataFrame with a row for each API call of the entries, judged, and the number of entries that call nothing."""
    import pandas as pd

    frames, unbuilt = [], 0
    entries = enumerate(entries)
    while True:
        with exchange_folder() as folder:
            cases = {}
            for number, (label, function, inputs) in entries:
                try:
                    case = _case(function, inputs, folder / str(number))
                except SortError as error:
                    unbuilt += 1
                    print(f"not built: {' '.join(label)}: {error}", file=sys.stderr)
                    continue
                cases.setdefault(case.id, (label, case))
                if len(cases) == GROUP:
                    break
            if not cases:
                break
            rows = []
            for case, found in campaign([c for _, c in cases.values()], reference, candidate, timeout):
                label = dict(zip(LABEL, cases[case.id][0], strict=True))
                rows += [{**label, **row} for row in found]
            frames.append(pd.DataFrame(rows))
            if log:
                log(sum(map(len, frames)))
    if not frames:
        return pd.DataFrame(), unbuilt
    return judge(pd.concat(frames, ignore_index=True), "evidence"), unbuilt


def report(rows, unbuilt, seconds):
    """Print the figures and every accusation."""
    counts = rows["verdict"].astype(str).value_counts()
    accused = rows[rows["verdict"].astype(str).isin(SHOWN)]
    for row in accused.sort_values(["verdict", "api"]).to_dict("records"):
        shown = {name: row[name] for name in ("api", *LABEL, "reason")}
        print(json.dumps({"verdict": str(row["verdict"]), **shown}))
    # What both sides refuse accuses nobody.
    findings = rows[accuses(rows.assign(evidence=rows["verdict"].astype(str)))]
    found = Counter(zip(findings["api"], findings["dtype"], findings["layout"], findings["kind"], strict=True))
    unknown = {key: count for key, count in found.items() if key not in KNOWN}
    note = ", ".join(f"{name} {count}" for name, count in counts.items())
    note += f"; {unbuilt} not built; {seconds:.0f} s"
    figure("calls judged", len(rows), "at least 2000", len(rows) >= 2000, note)
    figure("APIs judged", int(rows["api"].nunique()), "", True, "")
    for key in sorted(found.keys() & KNOWN.keys()):
        figure(f"findings: {', '.join(filter(None, key))}", found[key], "", True, KNOWN[key])
    figure("findings that no known defect explains", sum(unknown.values()), 0, not unknown,
           "; ".join(sorted(", ".join(filter(None, key)) for key in unknown)))  # fmt: skip


def figure(name, value, bar, ok, note):
    """One JSON line."""
    print(json.dumps({"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": "", "note": note}))


def main():
    """Judge everything and print what is accused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4, help="samples of each operator and dtype")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--only", nargs="*", default=[], help="operators of the database, parts of a rule's text")
    parser.add_argument("--source", default="all", choices=["all", "database", "rules"])
    parser.add_argument("--reference", default="cpu")
    parser.add_argument("--candidate", default="cpu:baseline")
    parser.add_argument("--out", help="Parquet file for all rows")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    entries = []
    if given.source != "rules":
        entries += [database(given.dtypes, given.samples, given.only)]
    if given.source != "database":
        entries += [rules(given.only)]
    rows, unbuilt = verdicts((e for part in entries for e in part), given.reference, given.candidate,
                             log=lambda n: print(f"{n} calls", file=sys.stderr))  # fmt: skip
    if given.out:
        rows.assign(verdict=rows["verdict"].astype(str)).to_parquet(given.out)
    report(rows, unbuilt, time.perf_counter() - start)


# ---- calls by rule: forms that models use, over layouts and ranges of values ----


def _draw(*shape, seed=0):
    return torch.from_numpy(np.random.Generator(np.random.Philox(seed)).standard_normal(shape))


RANGES = {  # what is done to standard normal values
    "": lambda x: x,
    "shifted by 1e3": lambda x: x + 1e3,
    "times 1e3": lambda x: x * 1e3,
    "times 1e-4": lambda x: x * 1e-4,
    "with infinities": lambda x: x.masked_fill(x > 2.3, float("inf")).masked_fill(x < -2.3, -float("inf")),
    "in steps of 1/4": lambda x: (x * 4).round() / 4,  # many equal values
}
IMAGES = {  # four dimensions
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every second column": lambda x: torch.cat([x, x], -1)[..., ::2],
}
ROWS = {  # three dimensions
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:1].expand(x.shape),
}
ON_IMAGES = """
F.conv2d(x, w, padding=1) | F.conv2d(x, w, stride=2) | F.conv_transpose2d(x, w.transpose(0, 1))
F.batch_norm(x, m, v) | F.batch_norm(x, None, None, training=True) | F.group_norm(x, 4) | F.instance_norm(x)
F.layer_norm(x, x.shape[1:]) | F.rms_norm(x, x.shape[2:]) | F.local_response_norm(x, 5) | F.max_pool2d(x, 2)
F.max_pool2d(x, 3, 2, 1, return_indices=True) | F.avg_pool2d(x, 3, 1, 1) | F.lp_pool2d(x, 2, 2)
F.adaptive_avg_pool2d(x, 3) | F.adaptive_max_pool2d(x, 3) | F.interpolate(x, scale_factor=2) | x.mean((2, 3))
F.interpolate(x, size=(9, 20), mode='bilinear') | F.interpolate(x, scale_factor=1.7, mode='bicubic')
F.interpolate(x, size=(7, 5), mode='area') | F.interpolate(x, size=(9, 20), mode='bilinear', antialias=True)
F.grid_sample(x, g, align_corners=False) | F.grid_sample(x, g, mode='nearest', align_corners=False)
F.grid_sample(x, g, mode='bicubic', padding_mode='reflection', align_corners=True) | F.pixel_shuffle(x, 2)
F.pad(x, (1, 1, 1, 1), value=0.1) | F.pad(x, (1, 1, 1, 1), mode='reflect') | F.unfold(x, 3) | x.amax((2, 3))
x.var((0, 2, 3)) | F.dropout(x, 0.3) | F.dropout2d(x, 0.3) | F.alpha_dropout(x, 0.2, training=True)
torch.fft.rfft2(x.float())
"""
ON_ROWS = """
F.linear(x, w) | x @ x.transpose(1, 2) | torch.einsum('bnc,bmc->bnm', x, y)
torch.baddbmm(b, x, x.transpose(1, 2)) | torch.addmm(b[0], x[0], x[1].t())
F.scaled_dot_product_attention(x, y, y) | F.bilinear(x, y, k) | torch.cdist(x.float(), y.float())
F.scaled_dot_product_attention(x, y, y, is_causal=True) | F.layer_norm(x, x.shape[-1:])
F.rms_norm(x, x.shape[-1:]) | x.softmax(-1) | x.log_softmax(-1) | x.softmax(1) | F.softmin(x, -1)
x.logsumexp(-1) | torch.logcumsumexp(x, 1) | F.normalize(x, dim=-1) | F.cosine_similarity(x, y, -1) | F.gelu(x)
F.gelu(x, approximate='tanh') | F.silu(x) | F.mish(x) | F.softplus(x) | F.elu(x) | F.selu(x) | F.hardswish(x)
F.glu(x) | F.logsigmoid(x) | torch.sigmoid(x) | torch.tanh(x) | x.exp() | x.expm1() | x.abs().log()
x.abs().log1p() | x.sin() | x.cos() | x.tan() | x.atan() | x.erf() | x.abs().rsqrt() | x.sum() | x.sum(-1)
x.mean(1) | x.var(-1) | x.std(0) | x.norm(dim=-1) | x.norm(p=1) | x.prod(-1) | torch.var_mean(x, -1)
x.cumsum(1) | x.cumprod(-1) | x.cummax(-1) | x.max(-1) | x.argmax(-1) | x.sort(-1)
torch.argsort(x, dim=-1, stable=True) | x.topk(3) | x.median(-1) | x.mode(-1) | x.kthvalue(2, -1)
x.aminmax(dim=-1) | x.quantile(0.3) if x.dtype == torch.float32 else x.amax() | x + y | x * y | x / y | x - 0.1
x * 0.1767766952966369 | 1 / x | x ** 2 | x ** 3 | x.abs() ** 0.5 | x ** -1 | 2.0 ** (x / 50)
torch.pow(x.abs(), y) | torch.fmod(x, 0.3) | torch.remainder(x, y) | torch.div(x, y, rounding_mode='floor')
x.round(decimals=2) | x.floor() | x.clamp(-0.1, 0.1) | torch.where(x > 0, x, y) | x.masked_fill(x > 0, 0.1)
torch.lerp(x, y, 0.3) | torch.hypot(x, y) | torch.addcmul(x, x, y, value=0.1)
torch.addcdiv(x, y, x, value=0.1) | torch.atan2(x, y) | torch.logaddexp(x, y) | x.sign() | F.mse_loss(x, y)
F.l1_loss(x, y) | F.smooth_l1_loss(x, y) | F.huber_loss(x, y) | F.cross_entropy(x[:, 0], c)
F.kl_div(x.log_softmax(-1), y.softmax(-1)) | F.binary_cross_entropy_with_logits(x, y.sigmoid())
F.nll_loss(x[:, 0].log_softmax(-1), c) | F.poisson_nll_loss(x, y.abs()) | F.embedding(i, x[0])
F.embedding_bag(i, x[0]) | x.index_add(1, j, y[:, :4]) | x.scatter_add(1, q, y) | x.index_select(1, j)
x.gather(1, q) | x.scatter_reduce(1, q, y, 'mean') | x.scatter_reduce(1, q, y, 'prod') | x.flip(1)
x.index_fill(1, j, 0.1) | torch.cat([x, y], 1) | x.repeat(2, 1, 1) | x.to(torch.float16) | x.to(torch.int32)
x.long() | x.to(torch.bfloat16) | x == y | torch.isclose(x, y) | torch.fft.fft(x.float())
torch.fft.irfft(torch.fft.rfft(x.float())) | torch.linalg.svd(x.float()) | torch.linalg.qr(x.float())
torch.linalg.eigh((x @ x.transpose(1, 2)).float())
torch.linalg.lstsq(x.transpose(1, 2).float(), y.transpose(1, 2).float()[..., :2])
torch.linalg.solve((x @ x.transpose(1, 2)).float() + 50 * torch.eye(x.shape[1]), y.float())
torch.linalg.det((x @ x.transpose(1, 2)).float()) | torch.linalg.vector_norm(x, 3, -1) | torch.trapezoid(x)
torch.diff(x) | torch.cov(x[0]) | x.float().histc(10) | torch.renorm(x, 2, 0, 1.0) | F.gumbel_softmax(x)
torch.bernoulli(x.sigmoid()) | torch.multinomial(x[0].softmax(-1), 3) | torch.normal(x, x.abs())
torch.rand_like(x) | x.masked_fill(x < 9e9, float('-inf')).softmax(-1) | x[:0] | x[:0].sum() | x[0, 0, 0] * 3
x[0, 0, 0].exp() | x.to_sparse() | x.tril()
"""


def rules(only=()):
    """(label, function, inputs) of the two tables over dtypes, layouts and ranges of values.

    A label is the call's text, the dtype of its inputs, their layout and the kind of their values.
    """
    size = {"n": 4, "c": 16, "h": 12, "l": 20, "d": 32}
    index = np.random.Generator(np.random.Philox(9))
    q = torch.from_numpy(index.integers(0, size["l"], (size["n"], size["l"], size["d"])))
    whole = {"i": q[:, :5, 0], "j": q[0, :4, 1], "q": q, "c": q[:, 0, 0]}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for range_, change in RANGES.items():
            image = change(_draw(size["n"], size["c"], size["h"], size["h"])).to(dtype)
            row, other = (change(_draw(size["n"], size["l"], size["d"], seed=s)).to(dtype) for s in (1, 2))
            parts = {"w": _draw(24, size["c"], 3, 3) * 0.1, "m": _draw(size["c"]), "v": _draw(size["c"]).abs() + 0.1,
                     "g": _draw(size["n"], 6, 7, 2).clamp(-1.1, 1.1)}  # fmt: skip
            more = {"y": other, "w": _draw(24, size["d"]) * 0.1, "b": _draw(size["n"], size["l"], size["l"]),
                    "k": _draw(5, size["d"], size["d"]) * 0.1}  # fmt: skip
            for table, layouts, value, given in ((ON_IMAGES, IMAGES, image, parts), (ON_ROWS, ROWS, row, more)):
                given = {name: tensor.to(dtype) for name, tensor in given.items()}
                for layout, arrange in layouts.items():
                    if range_ and layout != "contiguous" and dtype != torch.float32:
                        continue
                    inputs = {"x": arrange(value), **given, **(whole if table is ON_ROWS else {})}
                    for text in filter(None, (part.strip() for part in table.replace("\n", "|").split("|"))):
                        if only and not any(name in text for name in only):
                            continue
                        yield (text, str(dtype)[6:], layout, range_), text, inputs


if __name__ == "__main__":
    main()
