"""Kinds of calls that a careless rule accuses or misses: results that are not unique, special values, whole numbers,
random masks, sparse results, gradients, flags of precision; and a user's own thresholds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_judging import CPU, HARMLESS, draw, verdict

import sortlib as sl
from sortlib.apis import Argument
from sortlib.checking import check_file, check_many
from sortlib.errors import SortError
from sortlib.judging import judge
from sortlib.platform import Platform
from sortlib.runner import bounds, evidence
from sortlib.runner.invariants import factor, invariants
from sortlib.thresholds import FAMILIES, UNITS, Table

HERE = str(Path(__file__).resolve().parent)


def faulty(*faults):
    armed = ", ".join(faults)
    return Platform(armed, "cpu", imports=("faulty_arithmetic",),
                    env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": armed})  # fmt: skip


def rows_of(entries, frames):
    rows = pd.concat([frame.assign(call_text=call) for (call, _), frame in zip(entries, frames, strict=True)])
    assert (rows.status == "ok").all(), rows[rows.status != "ok"][["call_text", "message"]].to_string()
    return rows


# ---- differences ----


def test_whole_numbers_are_compared_exactly():
    a = np.array([2**62, -(2**63), 5], np.int64)
    found = evidence.compare(a, a + np.array([1, 0, 0]))
    assert (found["max_abs"], found["differing"]) == (1, 1 / 3)  # in float64 both are 2**62
    ends = evidence.compare(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert ends["max_abs"] == 2.0**64


def test_the_sign_of_zero_counts_in_bits_and_accuses_nobody(portable):
    found = evidence.compare(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]))
    assert (found["bits"], found["differing"], found["max_abs"]) == (0.5, 0, 0)
    assert verdict(local_differing=0.0, local_max_abs=0.0, local_bits=0.5, propagated_differing=0.0)[0] == "rounding"
    assert portable["zeros"][0].evidence.tolist() == ["identical"] * 2


def test_parts_of_complex_numbers_share_their_modulus():
    # The error of the imaginary part is that of a number of size 1, whatever its own size.
    right = evidence.Truth(values=np.array([1 + 1e-8j]))
    limit = bounds.Bound((0.0, 2.0, 0.0), (0.0, 2.0, 0.0), 1)
    unit = 2.0**-24
    found = evidence.errors(np.array([1 + (1e-8 + unit) * 1j], "complex64"), right, limit, unit, 0.0, 3e38)
    assert found["ratio"] == pytest.approx(0.5, rel=1e-3)  # one u of the two that are allowed


def test_classes_of_values_that_are_not_finite():
    right = evidence.Truth(values=np.array([1.0, np.inf, np.nan, 1e300]))
    found = evidence.errors(np.float32([np.nan, np.nan, 2.0, np.inf]), right, None, 2.0**-24, 0.0, 3.4e38)
    assert {name: found[name] for name in ("lost", "nan_wrong", "nan_missing")} == {
        "lost": 0.25, "nan_wrong": 0.5, "nan_missing": 0.25,  # 1e300 is beyond float32, so an infinity is right
    }  # fmt: skip


# ---- results that are not unique ----


def test_factors_are_compared_by_what_every_right_answer_shares():
    x = torch.from_numpy(draw(6, 4)).double()
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    given = [Argument("input", x, "positional")]
    signs = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)
    right = invariants("linalg.svd", given, (u, s, v))
    flipped = invariants("linalg.svd", given, (u * signs, s, v * signs[:, None]))
    for (a, scale), (b, _) in zip(right, flipped, strict=True):
        assert float(((a - b).abs() / scale).max()) < 1e-15
    torch.testing.assert_close(right[1][0], x)  # the product
    wrong = invariants("linalg.svd", given, (u.roll(1, 1), s, v))
    assert float((wrong[1][0] - right[1][0]).abs().max()) > 1e3 * factor(given) * 2.0**-24


DEFICIENT = (draw(3, 8, 2) @ draw(3, 2, 8, seed=1)).astype("float32")  # rank 2 of 8
NOT_UNIQUE = [
    *[(call, {"x": values}) for values in (DEFICIENT, draw(3, 8, 8), np.eye(8, dtype="float32"))
      for call in ("torch.linalg.svd(x)", "torch.svd(x)", "torch.linalg.qr(x)", "torch.linalg.eigh(x @ x.mT)",
                   "torch.linalg.eig(x)", "torch.linalg.lstsq(x, x[..., :1])", "torch.linalg.lu_factor(x + 1)")],
    ("x.argmax(-1)", {"x": np.round(draw(50, 20))}),
    ("x.sort(-1, descending=True)", {"x": np.round(draw(50, 20))}),
    ("x.topk(3)", {"x": np.round(draw(50, 20)).astype("int64")}),
    ("x.argsort(-1)", {"x": np.round(draw(50, 20))}),
]  # fmt: skip


def test_results_that_are_not_unique_are_no_suspects(portable):
    rows = rows_of(NOT_UNIQUE, portable["not unique"])
    assert set(rows.evidence) <= {"identical", "rounding"}, rows[["call_text", "evidence", "reason"]].to_string()
    judged = rows[rows["shared"] & rows.api.str.startswith("linalg")]
    assert judged.candidate_ratio.notna().all()  # not just left alone


def test_wrong_factors_and_positions_are_suspects_and_other_choices_are_not(broken, otherwise):
    assert broken["turned vectors"].evidence.tolist()[-1] == "suspect"
    assert otherwise["opposite vectors"].evidence.tolist()[-1] == "rounding"
    assert broken["positions"].evidence.tolist() == ["suspect"]
    assert broken["equal positions"].evidence.tolist() == ["identical"]  # all are largest


# ---- special values ----


def test_nan_by_definition_is_no_finding_and_nan_at_a_limit_is(portable):
    found = [frame.iloc[0] for frame in portable["special values"]]
    assert [row.evidence in ("identical", "rounding") for row in found[:4]] == [True] * 4
    # x times the sigmoid of x goes to 0; the float64 kernels say NaN as well.
    assert found[4].evidence == "nan" and "the limit at infinity" in found[4].reason
    assert found[6].evidence in ("identical", "rounding")


def test_conversions_beyond_the_range_of_whole_numbers_are_not_judged(portable):
    found = portable["conversions"][0].iloc[0]
    assert found.truth_missing.startswith("numbers outside the range of the integer type")
    assert found.evidence in ("identical", "unjudged")


def test_sparse_results_are_compared(portable):
    (found,) = portable["sparse"]
    assert found.status.tolist() == ["ok"] * 3 and set(found.evidence) == {"identical"}


def test_empty_tensors_and_single_numbers(portable):
    for frame in portable["small"]:
        assert set(frame.evidence) <= {"identical", "rounding"}, frame[["api", "evidence", "reason"]].to_string()


# ---- results with steps ----


def test_a_remainder_over_many_periods_may_be_anything_below_its_divisor():
    # 1e3 / 0.3 is 3333 and known to 1.6 in float16 (u = 2**-11): every result from 0 to 0.3 is right.
    given = [Argument("input", torch.tensor([1e3, 0.7], dtype=torch.float16), "positional"),
             Argument("other", 0.3, "positional")]  # fmt: skip
    node = {"api": "fmod", "target": "torch.fmod", "inplace": False}
    right, _ = bounds.truth(CPU, node, given, 0)
    (limit,) = bounds.bound(CPU, node, given, right, 0)
    allowed = limit.total[2] * limit.extra * 2.0**-11
    assert allowed.tolist() == pytest.approx([0.3, float(allowed[1])]) and float(allowed[1]) < 0.1


def test_bins_that_are_narrower_than_rounding_are_not_judged(portable):
    narrow, wide = (frame.iloc[0] for frame in portable["bins"])
    assert narrow.truth_missing == "no bound: the 100 bins are narrower than the rounding of positions among them"
    assert narrow.evidence in ("identical", "unjudged") and pd.isna(narrow.candidate_ratio)
    assert wide.candidate_ratio <= 1 and wide.evidence in ("identical", "rounding")


# ---- gates ----

# Most elements small, some far out: there a gate is nearly closed, and its error counts by the size of x.
_SMALL, _FAR = draw(4, 1000) * np.float32(0.02), np.abs(draw(4, 20)) + np.float32(2.5)
FAR_OUT = [np.concatenate([_SMALL, sign * _FAR], 1) for sign in (1, -1)]
GATES = [(f"F.{name}", {"x": values}) for values in FAR_OUT for name in (
    "gelu(x)", "gelu(x, approximate='tanh')", "silu(x)", "mish(x)", "hardswish(x)", "glu(x)", "glu(x, 0)",
    "softplus(x)", "logsigmoid(x)", "elu(x)", "selu(x)", "celu(x)", "tanhshrink(x)")]  # fmt: skip


def test_errors_of_gates_that_close_are_no_suspects(portable):
    """oneDNN's gelu is 1e-6 off at -3.5, where its own tests accept 4e-6 (tests/benchdnn/eltwise/eltwise.cpp,
    check_abs_err), and the portable kernel far less: neither is a bug."""
    for group in ("gates", "gradients of gates"):
        rows = rows_of(GATES, portable[group])
        other = rows[~rows.evidence.isin(["identical", "rounding"])]
        assert other.empty, other[["call_text", "evidence", "reason"]].to_string()


def test_equal_bits_far_out_accuse_nobody():
    rows = rows_of(GATES, check_many(GATES, "cpu", "cpu"))
    assert set(rows.evidence) == {"identical"}, rows[["call_text", "evidence", "reason"]].to_string()


def test_a_gate_counts_by_the_size_of_what_it_multiplies():
    x = torch.tensor([-4.0, 0.01, 4.0] + [0.01] * 997)
    for api, dim in (("gelu", None), ("glu", 0)):
        given = [Argument("input", x, "positional")] + [Argument("dim", dim, "keyword")] * (dim is not None)
        node = {"api": api, "target": f"torch.nn.functional.{api}", "inplace": False}
        right, _ = bounds.truth(CPU, node, given, 0)
        (limit,) = bounds.bound(CPU, node, given, right, 0)
        (quick,) = bounds.bound(CPU, node, given, right, 0, quick=True)
        excused = limit.own[2] * limit.extra * 2.0**-24
        assert float(excused[0]) == pytest.approx(4e-6, rel=0.05)  # what oneDNN's tests accept at -4
        assert float(excused[1]) < 1e-8 and limit.own == limit.total and limit.own[:2] == quick.own[:2]
        assert (limit.partial, quick.partial, quick.extra) == (False, True, None)


def test_a_wrong_gate_is_a_suspect_far_out_too(otherwise):
    row = otherwise["gelu by tanh"].iloc[0]
    assert row.evidence == "suspect" and row.candidate_error > 1e-4, row.reason


# ---- random masks ----


def test_dropouts_are_judged_by_what_both_keep_and_by_the_share_dropped(broken, otherwise, drawn):
    found = {"random": drawn, "suspect": broken["unscaled dropout"], "share": otherwise["share of dropout"]}
    rows = {name: frame.iloc[0] for name, frame in found.items()}
    assert [row.evidence for row in rows.values()] == ["random", "suspect", "suspect"]
    assert "dropped on one side only; what both keep is 0 apart" in rows["random"].reason
    assert rows["random"].local_other_mask == pytest.approx(2 * 0.25 * 0.75, abs=0.05)  # two independent masks
    assert "on the candidate" in rows["suspect"].reason and "dropped on the candidate" in rows["share"].reason


def test_random_numbers_have_no_float64_truth(portable):
    row = portable["random"][0].iloc[0]
    assert (row.truth_missing, row.family) == ("random numbers", "random")
    assert row.evidence in ("identical", "random")


# ---- flags of precision ----


def test_flags_of_a_device_of_its_own_make_the_verdict_config(broken):
    """An out-of-tree device names its flags in its device module; here torch.cpu stands for one."""
    row = broken["short linear"].iloc[0]
    assert row.evidence == "config", row.reason
    assert row.strict_error < 1e-4 < 1e-2 < row.candidate_error and row.again_error == row.candidate_error


def test_a_flaky_call_is_no_matter_of_configuration(broken):
    """It is wrong in one call of ten, so the run with shortcuts off is right by chance."""
    row = broken["flaky silu"].iloc[0]
    assert row.evidence == "suspect", row.reason
    assert row.strict_error < 1e-6 and "the result changes from call to call: the same call again was" in row.reason


# ---- gradients ----

GRADIENTS = [
    *[(call, {"x": draw(2, 8, 6, 6), "w": draw(4, 8, 3, 3) * np.float32(0.1)})
      for call in ("F.conv2d(x, w)", "F.max_pool2d(x, 3, 1)", "F.avg_pool2d(x, 2)", "F.relu(x)", "F.group_norm(x, 2)",
                   "F.batch_norm(x, None, None, training=True)", "x.flatten(1)", "F.interpolate(x, scale_factor=2)")],
    *[(call, {"x": values, "w": draw(5, 16), "i": np.array([1, 1, 0])})
      for values in (draw(3, 7, 16), draw(3, 7, 16) * np.float32(30))
      for call in ("F.linear(x, w)", "x @ x.mT", "F.layer_norm(x, (16,))", "x.softmax(-1)", "x.log_softmax(-1)",
                   "F.gelu(x)", "F.silu(x)", "torch.tanh(x)", "torch.sigmoid(x)", "x * x", "x / (x + 100)", "x.sum(1)",
                   "F.scaled_dot_product_attention(x, x, x)", "F.embedding(i, w)", "x.expand(2, 3, 7, 16)",
                   "torch.cat([x, x])", "F.dropout(x, 0.3)", "F.linear(x.bfloat16(), w.bfloat16())", "x.std(-1)")],
]  # fmt: skip


def test_gradients_of_ordinary_calls_are_no_suspects(portable):
    rows = rows_of(GRADIENTS, portable["gradients"])
    other = rows[~rows.evidence.isin(["identical", "rounding", "random"])]
    assert other.empty, other[["call_text", "evidence", "reason"]].to_string()


def test_a_wrong_gradient_is_a_suspect_although_the_result_is_right(broken):
    assert broken["gelu"].evidence.tolist() == ["identical"]
    row = broken["gelu gradient"].iloc[0]
    assert row.evidence == "suspect" and "on the candidate" in row.reason and "(gradient of input)" in row.reason


def test_a_file_asks_for_gradients(tmp_path):
    (tmp_path / "cases.yaml").write_text(
        "- {id: a, inputs: {x: 'np.ones(3, \"float32\")'}, call: F.relu(x), backward: true, evidence: identical}"
    )
    assert check_file(tmp_path / "cases.yaml")[0]["ok"] is True
    (tmp_path / "cases.yaml").write_text("- {id: a, inputs: {x: np.ones(3)}, call: F.relu(x), backward: 3}")
    with pytest.raises(SortError, match="a: backward: must be true or false, not 3"):
        check_file(tmp_path / "cases.yaml")


# ---- the calls of all tests above, so that each platform starts only once ----

GONE, END = np.full((2, 4), -np.inf, "float32"), np.array([-np.inf, 1], "float32")
PORTABLE = {
    "not unique": NOT_UNIQUE,
    "gradients": GRADIENTS,
    "gates": GATES,
    "gradients of gates": GATES,
    "zeros": [("torch.neg(x) + 0", {"x": np.zeros(3, "float32")})],
    "special values": [
        ("x.softmax(-1)", {"x": GONE}), ("torch.log(x)", {"x": -np.ones(3, "float32")}), ("x - x", {"x": END}),
        ("torch.special.zeta(x, x)", {"x": -np.ones(3, "float32")}), ("F.silu(x)", {"x": END}),
        ("F.mish(x)", {"x": END}), ("torch.sigmoid(x)", {"x": END}),
    ],
    "conversions": [("x.to(torch.int32)", {"x": np.array([1e20, np.nan, 1.5], "float32")})],
    "sparse": [("x.to_sparse().to_dense() * 2", {"x": np.round(draw(5, 5))})],
    "small": [("x[:0].sum()", {"x": draw(4)}), ("x[:0] * 2", {"x": draw(4)}), ("x.exp()", {"x": np.float32(3)}),
              ("x.softmax(-1)", {"x": draw(0, 4)})],
    "bins": [(f"x.histc({n}, -10, 10)", {"x": torch.from_numpy(draw(50)).bfloat16()}) for n in (100, 10)],
    "random": [("torch.bernoulli(x)", {"x": np.full(100, 0.5, "float32")})],
}  # fmt: skip


@pytest.fixture(scope="module")
def portable():
    """Name of a group -> frames of its calls, on cpu against cpu:baseline."""
    flat = [(name, entry) for name, entries in PORTABLE.items() for entry in entries]
    frames = check_many([entry for _, entry in flat], backward=[name.startswith("gradients") for name, _ in flat])
    found = {name: [] for name in PORTABLE}
    for (name, _), frame in zip(flat, frames, strict=True):
        found[name].append(frame)
    return found


@pytest.fixture(scope="module")
def broken():
    """Name of a call -> its frame, on a candidate with a fault in each of these APIs."""
    square, values = {"x": draw(8, 8)}, {"x": draw(100)}
    calls = {
        "turned vectors": ("torch.linalg.eigh(x @ x.mT)", square),
        "positions": ("torch.argmax(x, -1)", square),
        "equal positions": ("torch.argmax(x, -1)", {"x": np.ones((8, 8), "float32")}),
        "unscaled dropout": ("F.dropout(x, 0.25)", {"x": draw(4000)}),
        "short linear": ("F.linear(x, w)", {"x": draw(32, 64), "w": draw(16, 64)}),
        "flaky silu": ("F.silu(x)", values),
        "gelu": ("F.gelu(x)", values),
        "gelu gradient": ("F.gelu(x)", values),
    }
    platform = faulty("turned vectors", "positions", "unscaled dropout", "short linear", "flaky silu", "gelu gradient")
    frames = check_many(calls.values(), candidate=platform, backward=[name == "gelu gradient" for name in calls])
    return dict(zip(calls, frames, strict=True))


@pytest.fixture(scope="module")
def otherwise():
    """The same for other faults of the same APIs."""
    calls = {
        "opposite vectors": ("torch.linalg.eigh(x @ x.mT)", {"x": draw(8, 8)}),
        "share of dropout": ("F.dropout(x, 0.25)", {"x": draw(4000)}),
        "gelu by tanh": ("F.gelu(x)", {"x": FAR_OUT[1]}),
    }
    return dict(zip(calls, check_many(calls.values(), candidate=faulty(*calls)), strict=True))


@pytest.fixture(scope="module")
def drawn():
    """A dropout on a candidate that draws other numbers."""
    return sl.check("F.dropout(x, 0.25)", {"x": draw(4000)}, candidate=faulty("other numbers"))


# ---- a user's own thresholds ----


def test_the_table_names_a_source_for_every_family_and_dtype():
    rows = Table().show()
    assert {(row["family"], row["dtype"]) for row in rows} == {(f, d) for f in FAMILIES for d in UNITS}
    assert all(row["source"] and row["bound"] for row in rows)
    assert UNITS["bfloat16"] == torch.finfo(torch.bfloat16).eps / 2


def test_own_thresholds_change_verdicts(tmp_path):
    worse = {**HARMLESS, "family": "sum", "candidate_error": 1e-3, "candidate_ratio": 3.0, "candidate_own_ratio": 3.0}
    path = tmp_path / "own.yaml"

    def judged(text):
        path.write_text(text)
        return str(judge(pd.DataFrame([worse]), thresholds=Table.read(path)).verdict[0])

    assert judged("- {family: exact, bounds: 4, source: a}") == "suspect"
    assert judged("- {family: sum, bounds: 4, source: a}") == "rounding"
    assert judged("- {family: sum, bounds: 4, dtype: float16, source: a}") == "suspect"
    assert judged("- {api: linear, bounds: 1, source: b}\n- {family: sum, bounds: 4, source: a}") == "suspect"
    assert judged("- {api: linear, ulp: 10, source: b}") == "rounding"  # the row is 8 units apart
    assert judged("- {api: linear, clearly_worse: 2000, source: b}") == "rounding"


@pytest.mark.parametrize(
    "text, message",
    [
        ("- {family: sums, bounds: 2, source: a}", "row 1: no family 'sums'; valid: exact, masked, matrix, other"),
        ("- {api: a, family: sum, bounds: 2, source: a}", "row 1: needs either api or family"),
        ("- {api: a, bounds: 2}", "row 1: needs a source"),
        ("- {api: a, source: b}", "row 1: sets nothing; give bounds, clearly_worse, ulp"),
        ("- {api: a, bounds: 0, source: b}", "row 1: bounds: must be a number above 0, not 0"),
        ("- {api: a, ulp: many, source: b}", "row 1: ulp: must be a number from 0 on, not 'many'"),
        ("- {api: a, dtype: float31, ulp: 1, source: b}", "row 1: no floating-point dtype 'float31'; valid: bfloat16"),
        ("- {api: a, colour: 1, source: b}", "row 1: unknown key 'colour'; valid: api, bounds"),
        ("a: 1", "must be a list of rows"),
        ("- [", "broken YAML"),
    ],
)
def test_mistakes_in_own_thresholds_get_one_line(tmp_path, text, message):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(SortError) as error:
        Table.read(tmp_path / "own.yaml")
    assert message in str(error.value) and "own.yaml" in str(error.value) and "\n" not in str(error.value)
