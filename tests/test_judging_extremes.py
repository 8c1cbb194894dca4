"""Calls at the ends of what numbers can hold, and near them: rows of two values, results below the normal numbers,
squares that overflow, near points, and inputs that a platform of a narrower dtype rounds on to a pole or a step."""

import numpy as np
import pytest
import torch
from test_judging import CPU, draw

from sortlib.apis import Argument
from sortlib.checking import check_many
from sortlib.runner import bounds

PAIRS = np.float32(1e-3) * draw(1000, 2) + draw(1000, 1)  # two values each, near each other
SMALL = draw(2, 4, 8, 8) * np.float32(1e-22), draw(3, 4, 3, 3) * np.float32(1e-20)
POINTS = draw(40, 100) + 100


def verdicts_of(calls, candidate="cpu:baseline"):
    return [frame.iloc[-1] for frame in check_many(calls, "cpu", candidate)]


def bound_of(api, target, *inputs):
    given = [Argument(name, value, "keyword") for name, value in inputs]
    node = {"api": api, "target": target, "inplace": False}
    right, _ = bounds.truth(CPU, node, given, 0)
    return right[0], bounds.bound(CPU, node, given, right, 0)[0]


@pytest.fixture(scope="module")
def extremes():
    calls = {
        "pairs": ("F.layer_norm(x, (2,))", {"x": PAIRS}),
        "channels": ("F.batch_norm(x, None, None, training=True)", {"x": PAIRS.T.reshape(2, 1000, 1, 1)}),
        "products": ("F.conv2d(x, w)", {"x": SMALL[0], "w": SMALL[1]}),
        "sigmoid": ("x.sigmoid()", {"x": -90 - np.abs(draw(200))}),
        "norm of small": ("torch.linalg.vector_norm(x)", {"x": draw(4000) * np.float32(1e-25)}),
        "norm of large": ("torch.linalg.vector_norm(x)", {"x": draw(4000) * np.float32(1e19)}),
        "layer norm of large": ("F.layer_norm(x, (50,))", {"x": draw(80, 50) * np.float32(1e30)}),
        "alike": ("torch.dist(x, y, 3)", {"x": np.zeros(256, "float32"), "y": np.full(256, 2.1, "float32")}),
        "distances": ("torch.cdist(x, x)", {"x": POINTS}),
    }
    return dict(zip(calls, verdicts_of(calls.values()), strict=True))


@pytest.mark.parametrize("name", ["pairs", "channels", "products", "sigmoid", "norm of small", "alike", "distances"])
def test_what_every_kernel_loses_there_is_no_finding(extremes, name):
    assert extremes[name].evidence in ("identical", "rounding"), extremes[name].reason


def test_norms_may_overflow_as_pytorch_documents_and_normalisation_may_not(extremes):
    assert extremes["norm of large"].evidence == "unjudged" and "PyTorch documents" in extremes["norm of large"].reason
    assert extremes["layer norm of large"].evidence in ("nan", "both-suspect")


def test_two_values_that_move_alike_hide_no_conditioning():
    """A row of two near values: its normalised values hang on their difference, which a draw of equal signs keeps."""
    x = torch.tensor([[1.0, 1.001]] * 64, dtype=torch.float32)
    right, limit = bound_of("layer_norm", "torch.nn.functional.layer_norm", ("input", x), ("normalized_shape", (2,)))
    assert float(limit.extra.min()) > 0.9 * float(limit.extra.max())  # every row, whatever its signs


def test_a_root_below_the_normal_numbers_loses_the_root_of_a_step():
    x = torch.full((100,), 1e-25)
    right, limit = bound_of("linalg.vector_norm", "torch.linalg.vector_norm", ("input", x), ("ord", 2))
    assert float(right) < limit.own[0] * 2.0**-24 < 1e-20


def test_distances_cancel_only_where_matrices_are_multiplied():
    x = torch.from_numpy(POINTS)
    target, unit = "torch.cdist", 2.0**-24
    allowed = {}
    for mode in ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"):
        _, limit = bound_of("cdist", target, ("x1", x), ("x2", x), ("compute_mode", mode))
        allowed[mode] = limit.own[2] * unit * float(limit.extra.max())
    few = bound_of("cdist", target, ("x1", x[:20]), ("x2", x[:20]))[1]
    assert allowed["use_mm_for_euclid_dist_if_necessary"] > 0.1  # the root of some u * |x|^2, 1e6
    assert allowed["donot_use_mm_for_euclid_dist"] == 0 and few.own[2] == 0


@pytest.mark.parametrize("length", [1, 2, 9, 100, 10000])
def test_a_sum_is_never_allowed_more_by_its_stricter_bound(length):
    x = torch.from_numpy(np.abs(draw(1, length)))
    right, limit = bound_of("linear", "torch.nn.functional.linear", ("input", x), ("weight", torch.ones(1, length)))
    loose, strict = (t[0] + t[1] * float(right) + t[2] * float(limit.extra) for t in (limit.total, limit.own))
    assert strict <= loose * (1 + 1e-6)


NEAR_POLES = [
    ("torch.atanh(x)", {"x": np.float32([0.5, 0.9999, -0.9999])}),
    ("x.lgamma()", {"x": np.float32([-2.001, 3.5])}),
    ("x.rsqrt()", {"x": np.float32([1e-42, 2.0])}),
    ("x.float_power(2.5)", {"x": np.abs(draw(50))}),
    ("x.softmax(-1, dtype=torch.float32)", {"x": (draw(8, 50) * 100).astype("float16")}),
]


def test_a_pole_that_only_rounded_inputs_meet_is_no_finding():
    found = verdicts_of(NEAR_POLES, "cpu:bf16")
    assert [row.evidence for row in found] == ["rounding"] * len(found), [row.reason for row in found]
    assert "as the candidate rounds them" in found[0].reason


def test_what_rounded_inputs_do_not_explain_remains_a_finding():
    (row,) = verdicts_of([("torch.linalg.matrix_exp(x)", {"x": draw(6, 6)})], "cpu:bf16")
    assert row.evidence in ("nan", "suspect") and row.rounded_inputs is not True, row.reason


def test_a_quantised_output_is_not_compared_and_accuses_nobody():
    call = ("torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)", {"x": torch.ones(4, 5)})
    (row,) = verdicts_of([call])
    assert row["evidence"] == "unreached" and row["reason"] == "a quantised output, which is not compared"
