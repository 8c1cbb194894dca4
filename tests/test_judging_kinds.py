"""Kinds of calls that a careless rule accuses or misses: results that are not unique, special values, whole numbers,
random masks, sparse results, gradients, flags of precision; and a user's own thresholds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_judging import HARMLESS, draw, verdict

import sortlib as sl
from sortlib.apis import Argument
from sortlib.checking import check_file, check_many
from sortlib.errors import SortError
from sortlib.judging import judge
from sortlib.platform import Platform
from sortlib.runner import evidence
from sortlib.runner.invariants import factor, invariants
from sortlib.thresholds import FAMILIES, UNITS, Table

HERE = str(Path(__file__).resolve().parent)


def faulty(fault):
    return Platform(fault, "cpu", imports=("faulty_arithmetic",),
                    env={"PYTHONPATH": HERE, "SORT_TEST_ARITHMETIC": fault})  # fmt: skip


# ---- differences ----


def test_whole_numbers_are_compared_exactly():
    a = np.array([2**62, -(2**63), 5], np.int64)
    found = evidence.compare(a, a + np.array([1, 0, 0]))
    assert (found["max_abs"], found["differing"]) == (1, 1 / 3)  # in float64 both are 2**62
    ends = evidence.compare(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert ends["max_abs"] == 2.0**64


def test_the_sign_of_zero_counts_in_bits_and_accuses_nobody():
    found = evidence.compare(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]))
    assert (found["bits"], found["differing"], found["max_abs"]) == (0.5, 0, 0)
    assert verdict(local_differing=0.0, local_max_abs=0.0, local_bits=0.5, propagated_differing=0.0)[0] == "rounding"
    assert sl.check("torch.neg(x) + 0", {"x": np.zeros(3, "float32")}).evidence.tolist() == ["identical"] * 2


def test_parts_of_complex_numbers_share_their_modulus():
    # The error of the imaginary part is that of a number of size 1, whatever its own size.
    right = evidence.Truth(values=np.array([1 + 1e-8j]))
    from sortlib.runner.bounds import Bound

    limit = Bound((0.0, 2.0, 0.0), (0.0, 2.0, 0.0), 1)
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


def test_results_that_are_not_unique_are_no_suspects():
    frames = check_many(NOT_UNIQUE, "cpu", "cpu:baseline")
    rows = pd.concat([frame.assign(call_text=call) for (call, _), frame in zip(NOT_UNIQUE, frames, strict=True)])
    assert (rows.status == "ok").all(), rows[rows.status != "ok"][["call_text", "message"]].to_string()
    assert set(rows.evidence) <= {"identical", "rounding"}, rows[["call_text", "evidence", "reason"]].to_string()
    judged = rows[rows["shared"] & rows.api.str.startswith("linalg")]
    assert judged.candidate_ratio.notna().all()  # not just left alone


@pytest.mark.parametrize(
    "fault, call, values, expected",
    [
        ("opposite vectors", "torch.linalg.eigh(x @ x.mT)", draw(8, 8), "rounding"),
        ("turned vectors", "torch.linalg.eigh(x @ x.mT)", draw(8, 8), "suspect"),
        ("positions", "torch.argmax(x, -1)", draw(8, 8), "suspect"),
        ("positions", "torch.argmax(x, -1)", np.ones((8, 8), "float32"), "identical"),  # all are largest
    ],
)
def test_wrong_factors_and_positions_are_suspects_and_other_choices_are_not(fault, call, values, expected):
    assert sl.check(call, {"x": values}, candidate=faulty(fault)).evidence.tolist()[-1] == expected


# ---- special values ----


def test_nan_by_definition_is_no_finding_and_nan_at_a_limit_is():
    gone = np.full((2, 4), -np.inf, "float32")
    end = np.array([-np.inf, 1], "float32")
    calls = [("x.softmax(-1)", {"x": gone}), ("torch.log(x)", {"x": -np.ones(3, "float32")}),
             ("x - x", {"x": end}), ("torch.special.zeta(x, x)", {"x": -np.ones(3, "float32")}),
             ("F.silu(x)", {"x": end}), ("F.mish(x)", {"x": end}), ("torch.sigmoid(x)", {"x": end})]  # fmt: skip
    found = [frame.iloc[0] for frame in check_many(calls, "cpu", "cpu:baseline")]
    assert [row.evidence in ("identical", "rounding") for row in found[:4]] == [True] * 4
    # x times the sigmoid of x goes to 0; the float64 kernels say NaN as well.
    assert found[4].evidence == "nan" and "the limit at infinity" in found[4].reason
    assert found[6].evidence in ("identical", "rounding")


def test_conversions_beyond_the_range_of_whole_numbers_are_not_judged():
    found = sl.check("x.to(torch.int32)", {"x": np.array([1e20, np.nan, 1.5], "float32")}).iloc[0]
    assert found.truth_missing.startswith("numbers outside the range of the integer type")
    assert found.evidence in ("identical", "unjudged")


def test_sparse_results_are_compared():
    found = sl.check("x.to_sparse().to_dense() * 2", {"x": np.round(draw(5, 5))})
    assert found.status.tolist() == ["ok"] * 3 and set(found.evidence) == {"identical"}


def test_empty_tensors_and_single_numbers():
    calls = [("x[:0].sum()", {"x": draw(4)}), ("x[:0] * 2", {"x": draw(4)}), ("x.exp()", {"x": np.float32(3)}),
             ("x.softmax(-1)", {"x": draw(0, 4)})]  # fmt: skip
    for frame in check_many(calls, "cpu", "cpu:baseline"):
        assert set(frame.evidence) <= {"identical", "rounding"}, frame[["api", "evidence", "reason"]].to_string()


# ---- random masks ----


@pytest.mark.parametrize(
    "fault, expected, words",
    [
        ("other numbers", "random", "dropped on one side only; what both keep is 0 apart"),
        ("unscaled dropout", "suspect", "on the candidate"),
        ("share of dropout", "suspect", "dropped on the candidate"),
    ],
)
def test_dropouts_are_judged_by_what_both_keep_and_by_the_share_dropped(fault, expected, words):
    row = sl.check("F.dropout(x, 0.25)", {"x": draw(4000)}, candidate=faulty(fault)).iloc[0]
    assert row.evidence == expected and words in row.reason, row.reason
    if expected == "random":
        assert row.local_other_mask == pytest.approx(2 * 0.25 * 0.75, abs=0.05)  # two independent masks


def test_random_numbers_have_no_float64_truth():
    row = sl.check("torch.bernoulli(x)", {"x": np.full(100, 0.5, "float32")}).iloc[0]
    assert (row.truth_missing, row.family) == ("random numbers", "random")
    assert row.evidence in ("identical", "random")


# ---- flags of precision ----


def test_flags_of_a_device_of_its_own_make_the_verdict_config():
    """An out-of-tree device names its flags in its device module; here torch.cpu stands for one."""
    row = sl.check("F.linear(x, w)", {"x": draw(32, 64), "w": draw(16, 64)}, candidate=faulty("short linear")).iloc[0]
    assert row.evidence == "config", row.reason
    assert row.strict_error < 1e-4 < 1e-2 < row.candidate_error


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


def test_gradients_of_ordinary_calls_are_no_suspects():
    frames = check_many(GRADIENTS, "cpu", "cpu:baseline", backward=True)
    rows = pd.concat([frame.assign(call_text=call) for (call, _), frame in zip(GRADIENTS, frames, strict=True)])
    assert (rows.status == "ok").all(), rows[rows.status != "ok"][["call_text", "message"]].to_string()
    other = rows[~rows.evidence.isin(["identical", "rounding", "random"])]
    assert other.empty, other[["call_text", "evidence", "reason"]].to_string()


def test_a_wrong_gradient_is_a_suspect_although_the_result_is_right(tmp_path):
    values = {"x": draw(100)}
    assert sl.check("F.gelu(x)", values, candidate=faulty("gelu gradient")).evidence.tolist() == ["identical"]
    row = sl.check("F.gelu(x)", values, candidate=faulty("gelu gradient"), backward=True).iloc[0]
    assert row.evidence == "suspect" and "on the candidate" in row.reason and "(gradient of input)" in row.reason
    (tmp_path / "cases.yaml").write_text(
        "- {id: a, inputs: {x: 'np.ones(3, \"float32\")'}, call: F.relu(x), backward: true, evidence: identical}"
    )
    assert check_file(tmp_path / "cases.yaml")[0]["ok"] is True
    (tmp_path / "cases.yaml").write_text("- {id: a, inputs: {x: np.ones(3)}, call: F.relu(x), backward: 3}")
    with pytest.raises(SortError, match="a: backward: must be true or false, not 3"):
        check_file(tmp_path / "cases.yaml")


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
