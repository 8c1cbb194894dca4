"""Gradients of PyTorch's own kernels, where terms cancel, exponents are large or derivatives overflow: no finding; and
gradients that are wrong there: found. All of these calls were judged false before their bounds knew of it."""

import numpy as np
import pytest
from test_judging import draw
from test_judging_kinds import faulty

from sortlib.checking import check_many

ROWS = draw(8, 50, 64)
PAIRS = np.float32(1e-3) * draw(500, 2) + draw(500, 1)
IMAGES = draw(2, 3, 14, 14)
CLEAN = {
    "shifted rows": ("F.layer_norm(x, (50, 64))", {"x": ROWS + 1000}),
    "shifted columns": ("F.batch_norm(x, None, None, training=True)", {"x": draw(64, 100) + 1000}),
    "pairs": ("F.layer_norm(x, (2,))", {"x": PAIRS}),
    "pairs in groups": ("F.group_norm(x, 2, w)", {"x": PAIRS.reshape(250, 4), "w": draw(4)}),
    "norm that underflows": ("torch.linalg.vector_norm(x)", {"x": draw(4000) * np.float32(1e-25)}),
    "rank": ("torch.nanquantile(x, .3, -1)", {"x": np.where(ROWS > 2, np.float32("nan"), ROWS)}),
    "logarithms": ("torch.logcumsumexp(x, 0)", {"x": draw(1000) * 100}),
    "far tail": ("torch.special.log_ndtr(x)", {"x": draw(1000) * 30}),
    "bilinear": ("F.interpolate(x, size=(31, 5), mode='bilinear')", {"x": IMAGES}),
    "bicubic": ("F.interpolate(x, scale_factor=.37, mode='bicubic', antialias=True)", {"x": IMAGES}),
    "linear": ("F.interpolate(x, size=777, mode='linear')", {"x": IMAGES[0]}),
    "scaled": ("torch.special.i1e(x)", {"x": draw(1000)}),
    "distances": ("torch.cdist(x, y)", {"x": draw(40, 100) + 100, "y": draw(50, 100) + 100}),
    "below the normal numbers": ("x.exp()", {"x": -90 - np.abs(draw(200))}),
    "of eight bits": ("x.to(torch.float8_e4m3fn).float()", {"x": draw(1000)}),
}
OVERFLOWING = {
    "product": ("x.prod(-1)", {"x": ROWS * 1000}),
    "power of half": ("torch.pow(x, -3)", {"x": np.linspace(0.04, 0.2, 2000).astype("float16")}),
    "cube of a root": ("x.rsqrt()", {"x": np.geomspace(1e-27, 1e-24, 2000).astype("float32")}),
}


@pytest.fixture(scope="module")
def verdicts():
    calls = {**CLEAN, **OVERFLOWING}
    return dict(zip(calls, check_many(calls.values(), "cpu", "cpu:baseline", backward=True), strict=True))


@pytest.mark.parametrize("name", CLEAN)
def test_rounding_in_a_gradient_is_no_finding(verdicts, name):
    assert set(verdicts[name].evidence) <= {"identical", "rounding"}, list(verdicts[name].reason)


@pytest.mark.parametrize("name", OVERFLOWING)
def test_a_derivative_out_of_range_accuses_nobody(verdicts, name):
    row = verdicts[name].iloc[-1]
    assert row.truth_finite_lost > 0 and row.gradient_overflows  # else this test shows nothing
    assert row.evidence == "unjudged" and "leaves the range" in row.reason


def test_gradients_that_forget_a_term_are_found():
    calls = [CLEAN["shifted rows"], CLEAN["pairs"]]
    rows = [frame.iloc[-1] for frame in check_many(calls, candidate=faulty("layer norm gradient"), backward=True)]
    assert [row.evidence for row in rows] == ["suspect", "suspect"], [row.reason for row in rows]
    assert all("gradient of input" in row.reason and row.candidate_error > 0.1 for row in rows)
