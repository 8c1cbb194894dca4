"""Verdicts: of rows made by hand, whose answer is known, and of real calls on two real platforms."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import sortlib as sl
from sortlib import apis, thresholds
from sortlib.api_tables import SUM_OF_PRODUCTS
from sortlib.checking import check_file, check_many, compare_values
from sortlib.errors import SortError
from sortlib.grouping import cause_of, findings_of
from sortlib.judging import RANK, Verdict, judge
from sortlib.platform import Platform
from sortlib.runner import bounds
from sortlib.runner.bounds.products import sum_length
from sortlib.runner.execution import Executor

HARMLESS = {
    "case": "c", "pattern": "p", "node": 0, "api": "linear", "reference": "cpu", "candidate": "cuda", "random": False,
    "status": "ok", "side": "", "message": "", "incoming": 0.0, "nan_inputs": False, "truth_missing": "",
    "reference_nan": 0.0, "candidate_nan": 0.0, "reference_dtype": "float32", "candidate_dtype": "float32",
    "local_max_abs": 1e-6, "local_differing": 0.5, "local_scale_ulp": 8.0, "local_one_sided": 0.0,
    "propagated_max_abs": 1e-6, "propagated_differing": 0.5, "propagated_one_sided": 0.0,
    "reference_error": 1e-6, "candidate_error": 1e-6, "reference_ratio": 0.1, "candidate_ratio": 0.1,
    "reference_own_ratio": 0.2, "candidate_own_ratio": 0.2, "truth_finite_lost": 0.0, "samples": 1000.0,
}  # fmt: skip


def verdict(rule="evidence", **changes):
    (row,) = judge(pd.DataFrame([{**HARMLESS, **changes}]), rule).to_dict("records")
    return str(row["verdict"]), row["reason"]


# ---- the paper's rule: |a - b| <= 1e-3 on each platform's own chain, section IV-E ----


@pytest.mark.parametrize(
    "changes, expected, symptom",
    [
        ({"propagated_max_abs": 1e-3}, "pass", ""),
        ({"propagated_max_abs": 1.001e-3}, "fail", "precision"),
        ({"local_max_abs": 5.0, "propagated_max_abs": 0.0}, "pass", ""),
        ({"propagated_one_sided": 0.25}, "fail", "nan"),
        ({"status": "crash", "side": "candidate"}, "fail", "crash"),
        ({"status": "exception", "side": "both"}, "fail", "crash"),
        ({"status": "unreached"}, "unreached", ""),
        ({"propagated_max_abs": None, "propagated_one_sided": None}, "unreached", ""),
        ({"reference_nan": 0.5, "candidate_nan": 0.5, "propagated_max_abs": 0.0}, "pass", ""),  # NaN on both sides
    ],
)
def test_the_papers_rule(changes, expected, symptom):
    (row,) = judge(pd.DataFrame([{**HARMLESS, **changes}]), "paper").to_dict("records")
    assert (row["verdict"], row["symptom"]) == (expected, symptom)


def test_the_papers_threshold_can_be_another():
    rows = pd.DataFrame([HARMLESS])
    assert judge(rows, "paper", threshold=1e-7).verdict.tolist() == ["fail"]


# ---- the rule of evidence ----


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, "rounding"),
        ({"local_differing": 0.0, "propagated_differing": 0.0, "local_max_abs": 0.0}, "identical"),
        # One side beyond the bound, and clearly worse.
        ({"candidate_error": 8e-6, "candidate_ratio": 1.1, "candidate_own_ratio": 2.0}, "suspect"),
        ({"reference_error": 8e-6, "reference_ratio": 1.1, "reference_own_ratio": 2.0}, "suspect"),
        # Beyond the bound, but not 8 times worse than the other side.
        ({"candidate_error": 7e-6, "candidate_ratio": 1.1, "candidate_own_ratio": 2.0}, "rounding"),
        # 8 times worse, but what the rounding of the result explains: the worse of two good kernels.
        ({"candidate_error": 1e-4, "candidate_ratio": 0.5, "candidate_own_ratio": 0.9}, "rounding"),
        # Within what conditioning excuses, but the other side shows that it can be avoided.
        ({"candidate_error": 1e-5, "candidate_ratio": 0.5, "candidate_own_ratio": 50.0}, "suspect"),
        # The same, where the better side may be lucky: one independent value needs 16 times the ratio.
        ({"candidate_error": 1e-5, "candidate_ratio": 0.5, "candidate_own_ratio": 50.0, "samples": 1.0}, "rounding"),
        ({"candidate_error": 2e-4, "candidate_ratio": 0.5, "candidate_own_ratio": 50.0, "samples": 1.0}, "suspect"),
        # The candidate rounds its inputs to another dtype: no kernel can avoid that.
        ({"candidate_error": 1e-2, "candidate_ratio": 0.5, "candidate_own_ratio": 50.0, "lowered": True}, "rounding"),
        # Both far off.
        ({"reference_ratio": 5.0, "candidate_ratio": 6.0, "reference_own_ratio": 5.0, "candidate_own_ratio": 6.0},
         "both-suspect"),
        # Gone with reduced precision off, or not.
        ({"candidate_error": 1e-3, "candidate_ratio": 9.0, "candidate_own_ratio": 9.0, "strict_ratio": 0.1,
          "strict_error": 1e-6}, "config"),
        ({"candidate_error": 1e-3, "candidate_ratio": 9.0, "candidate_own_ratio": 9.0, "strict_ratio": 8.0,
          "strict_error": 9e-4}, "suspect"),
        # The same, where the call is right once more by itself: flaky, and not a matter of configuration.
        ({"candidate_error": 1e-3, "candidate_ratio": 9.0, "candidate_own_ratio": 9.0, "strict_ratio": 0.1,
          "strict_error": 1e-6, "again_ratio": 0.1, "again_error": 1e-6}, "suspect"),
        ({"candidate_error": 1e-3, "candidate_ratio": 9.0, "candidate_own_ratio": 9.0, "strict_ratio": 0.1,
          "strict_error": 1e-6, "again_ratio": 8.0, "again_error": 9e-4}, "config"),
        # A float64 call has no more precise truth: only a difference beyond both roundings counts.
        ({"reference_dtype": "float64", "reference_error": 0.0, "candidate_error": 1e-15, "candidate_ratio": 1.5,
          "candidate_own_ratio": 9.0}, "rounding"),
        ({"reference_dtype": "float64", "reference_error": 0.0, "candidate_error": 1e-9, "candidate_ratio": 3.0,
          "candidate_own_ratio": 9.0}, "suspect"),
        # Non-finite values.
        ({"local_one_sided": 0.1}, "nan"),
        ({"reference_nan": 0.1, "candidate_nan": 0.1}, "rounding"),  # float64 says NaN too, as for the log of -1
        ({"reference_nan": 0.1, "candidate_nan": 0.1, "truth_nan_wrong": 0.1, "api": "gelu"}, "nan"),
        ({"reference_nan": 0.1, "candidate_nan": 0.1, "truth_nan_wrong": 0.1}, "rounding"),  # inf - inf in float32
        ({"local_one_sided": 0.1, "by_order": True}, "unjudged"),  # 0 times an infinity that was given
        ({"truth_nan_missing": 0.1}, "nan"),
        ({"reference_nan": 0.1, "candidate_nan": 0.1, "reference_error": None, "reference_ratio": None,
          "truth_missing": "no float64 kernel"}, "nan"),
        ({"reference_nan": 0.1, "candidate_nan": 0.1, "nan_inputs": True, "reference_error": None,
          "reference_ratio": None, "candidate_ratio": None, "truth_missing": "none", "local_scale_ulp": 1.0},
         "rounding"),
        ({"truth_finite_lost": 0.1}, "nan"),
        # The own chain carries a difference that the call itself did not make.
        ({"incoming": 1e-2, "propagated_max_abs": 0.5}, "amplified"),
        ({"incoming": 1e-2, "propagated_max_abs": 5e-4}, "rounding"),
        # No truth.
        ({"reference_ratio": None, "candidate_ratio": None, "truth_missing": "no float64 kernel"}, "unjudged"),
        ({"reference_ratio": None, "candidate_ratio": None, "local_scale_ulp": 1.0}, "rounding"),
        ({"reference_ratio": None, "candidate_ratio": None, "reference_dtype": "int64", "local_scale_ulp": None,
          "api": "long"}, "suspect"),
        ({"reference_ratio": None, "candidate_ratio": None, "reference_dtype": "int64", "local_scale_ulp": None,
          "api": "argmax"}, "unjudged"),
        ({"random": True, "api": "dropout", "candidate_ratio": 1e9, "candidate_own_ratio": 1e9}, "random"),
        # What is no result.
        ({"status": "crash", "side": "candidate", "message": "killed by SIGSEGV"}, "crash"),
        ({"status": "timeout", "side": "both", "message": "no answer"}, "timeout"),
        ({"status": "exception", "side": "reference", "message": "RuntimeError"}, "exception"),
        ({"status": "mismatch", "side": "candidate", "message": "output shapes"}, "suspect"),
        ({"status": "unreached", "message": "an earlier call gave no result"}, "unreached"),
    ],
)  # fmt: skip
def test_the_rule_of_evidence(changes, expected):
    assert verdict(**changes)[0] == expected


def test_reasons_carry_the_numbers():
    _, reason = verdict(candidate_error=0.25, candidate_ratio=40.0, candidate_own_ratio=123.0)
    assert reason == (
        "error against float64 0.25 on the candidate, 1e-06 on the reference; 123 times the rounding of the result, "
        "40 times the rounding bound"
    )
    assert (
        verdict(status="crash", side="candidate", message="killed by SIGSEGV")[1] == "on candidate: killed by SIGSEGV"
    )
    assert "gain 50" in verdict(incoming=1e-2, propagated_max_abs=0.5)[1]


def test_an_unknown_rule_names_the_valid_ones():
    with pytest.raises(SortError, match="unknown rule 'mine'; valid: evidence, paper"):
        judge(pd.DataFrame([HARMLESS]), "mine")


def test_findings_are_grouped_and_ranked():
    worse = {"candidate_error": 1e-2, "candidate_ratio": 30.0, "candidate_own_ratio": 30.0}
    rows = [HARMLESS, {**HARMLESS, **worse}, {**HARMLESS, **worse, "case": "worst", "propagated_max_abs": 0.5},
            {**HARMLESS, "api": "relu", "status": "crash", "side": "candidate", "message": "killed"}]  # fmt: skip
    found = findings_of(judge(pd.DataFrame(rows)))
    assert found[["verdict", "api", "calls"]].values.tolist() == [
        ["suspect", "linear", 2], ["crash", "relu", 1], ["rounding", "linear", 1],
    ]  # fmt: skip
    assert found.worst_case[0] == "worst"


WORSE = {"candidate_error": 1e-3, "candidate_ratio": 9.0, "candidate_own_ratio": 9.0}
CAUSES = {  # verdict -> (what makes it, its cause)
    "identical": ({"local_differing": 0.0, "propagated_differing": 0.0, "local_max_abs": 0.0}, ""),
    "rounding": ({}, ""),
    "amplified": ({"incoming": 1e-2, "propagated_max_abs": 0.5}, "difference"),
    "config": ({**WORSE, "strict_ratio": 0.1, "strict_error": 1e-6}, "config on the candidate"),
    "suspect": (WORSE, "accuracy on the candidate"),
    "both-suspect": ({"reference_ratio": 5.0, "candidate_ratio": 6.0, "reference_own_ratio": 5.0,
                      "candidate_own_ratio": 6.0}, "accuracy on both sides"),
    "nan": ({"local_one_sided": 0.1, "candidate_nan": 0.1}, "nan on the candidate"),
    "unconfirmed": ({"unconfirmed": "timeout"}, "unconfirmed hang"),
    "exception": ({"status": "exception", "side": "both", "message": "TypeError: x"},
                  "exception on both sides: TypeError"),
    "crash": ({"status": "crash", "side": "candidate", "message": "killed by SIGSEGV"},
              "crash on the candidate: killed by SIGSEGV"),
    "timeout": ({"status": "timeout", "side": "reference", "message": "no answer"}, "hang on the reference"),
    "slow": ({"seconds_reference": 0.01, "seconds_candidate": 2.0}, "slow on the candidate"),
    "random": ({"random": True, "api": "bernoulli"}, ""),
    "unjudged": ({"reference_ratio": None, "candidate_ratio": None}, "difference"),
    "unreached": ({"status": "unreached", "message": "an earlier call gave no result"}, ""),
}  # fmt: skip


def test_every_verdict_is_known_everywhere():
    import sortlib
    from sortlib.grouping import ACCUSING
    from sortlib.report import MEANING

    assert set(RANK) == set(Verdict) == set(CAUSES) == set(MEANING)
    for name, (changes, cause) in CAUSES.items():
        row = {**HARMLESS, **changes}
        assert verdict(**changes)[0] == name
        assert str(cause_of({**row, "verdict": name})) == cause, name
    home = Path(sortlib.__file__).parent
    style = (home / "explorer" / "explorer.css").read_text()
    red, yellow = (set(re.findall(r'data-verdict="([^"]+)"', rule)) for rule in re.findall(
        r"\.sl-verdict:is\(([^{]*)::before \{\s*background", style))  # fmt: skip
    assert red == {str(v) for v in ACCUSING} - {"both-suspect"} | {"fail"}  # of the paper's rule
    assert yellow == {str(v) for v in Verdict} - red - {"identical", "rounding", "random", "unreached"}
    described = re.search(r"\| rule \| verdict \| meaning \|\n((?:\|.*\n)+)", (home.parent / "README.md").read_text())
    names = [row.split("|")[2] for row in described[1].splitlines()[2:]]
    assert {name.strip() for cell in names for name in cell.split(",")} == {str(v) for v in Verdict}


# ---- bounds: known by hand ----

CPU = Executor(Platform("cpu", "cpu").to_json())


def bound_of(function, *inputs):
    from sortlib.checking import _Capture

    class Calls(_Capture):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            from sortlib import apis

            self.call = apis.identify(func), apis.bind(apis.identify(func), args, kwargs or {})
            return func(*args, **(kwargs or {}))

    with Calls([], None) as calls:
        function(*inputs)
    api, arguments = calls.call
    node = {"api": api.name, "target": api.target, "inplace": False}
    right, reason = bounds.truth(CPU, node, arguments, 0)
    assert reason == ""
    return bounds.bound(CPU, node, arguments, right, 0)[0], right[0]


def test_moved_and_selected_elements_have_no_rounding():
    for call in (lambda x: x.flatten(), torch.relu, lambda x: F.max_pool2d(x, 2), lambda x: x.amax(-1)):
        limit, _ = bound_of(call, torch.randn(1, 2, 4, 4))
        assert limit.total == (0, 0, 0)


def test_one_operation_is_rounded_once():
    for call in (torch.add, torch.mul, torch.div):
        limit, _ = bound_of(call, torch.randn(5), torch.randn(5))
        assert limit.total == (0, thresholds.ROUNDED_FACTOR, 0)


def test_sums_grow_with_the_root_of_their_length_and_never_beyond_the_worst_case():
    x, w = torch.randn(7, 256), torch.randn(5, 256)
    limit, _ = bound_of(lambda x, w: torch.matmul(x, w.t()), x, w)
    assert limit.total[2] == pytest.approx(thresholds.SUM_FACTOR * 16)  # sqrt(256) = 16
    torch.testing.assert_close(limit.extra, x.abs() @ w.abs().t())
    limit, _ = bound_of(lambda x, w: torch.matmul(x, w), torch.randn(7, 9), torch.randn(9, 5))
    assert limit.total[2] == 9  # n u sum|terms| is the worst case, below 4 sqrt(9)
    limit, _ = bound_of(lambda q, k: torch.einsum("bnc,bmc->bnm", q, k), torch.randn(2, 3, 64), torch.randn(2, 5, 64))
    assert limit.total[2] == pytest.approx(thresholds.SUM_FACTOR * 8)  # c = 64 is summed over
    # Overflow in float32 is computed again in float64.
    limit, _ = bound_of(torch.sum, torch.full((4,), 3e38))
    assert float(limit.extra) == pytest.approx(1.2e39)


def test_conditioning_follows_the_inputs():
    x = torch.randn(64, 256)
    near, _ = bound_of(lambda x: F.layer_norm(x, (256,)), x)
    far, _ = bound_of(lambda x: F.layer_norm(x, (256,)), x + 1e4)
    assert near.samples == far.samples == 64
    # Inputs of 1e4 move by 1e4 u, and so do the results, whose spread is 1.
    assert float(far.extra.median()) == pytest.approx(1e4, rel=0.2)
    assert float(near.extra.median()) < 3
    assert near.own == pytest.approx(far.own, rel=0.01)


# ---- real calls ----

SHIFT = np.float32(1e4)


def draw(*shape, seed=0):
    return np.random.Generator(np.random.Philox(seed)).standard_normal(shape).astype("float32")


IMAGE, TOKENS, KERNEL, MATRIX = (
    draw(4, 32, 14, 14),
    draw(4, 50, 96),
    draw(16, 32, 3, 3) * np.float32(0.06),
    draw(64, 96),
)

ORDINARY = [
    *[(call, {"x": values, "w": KERNEL, "m": values.mean((0, 2, 3)), "v": values.var((0, 2, 3))})
      for values in (IMAGE, IMAGE + 100)
      for call in ("F.conv2d(x, w, padding=1)", "F.batch_norm(x, m, v)", "F.batch_norm(x, None, None, training=True)",
                   "F.group_norm(x, 4)", "F.instance_norm(x)", "F.adaptive_avg_pool2d(x, 1)",
                   "F.avg_pool2d(x, 3, 1, 1)",
                   "F.max_pool2d(x, 3, 2, 1)", "x.flatten(1)", "x.mean((2, 3))", "F.relu(x)",
                   "F.conv2d(x.bfloat16(), w.bfloat16())", "F.batch_norm(x.bfloat16(), None, None, training=True)",
                   "F.interpolate(x, scale_factor=2, mode='bilinear')")],
    *[(call, {"x": values, "y": draw(4, 50, 96, seed=1), "w": MATRIX})
      for values in (TOKENS, TOKENS + SHIFT, TOKENS * np.float32(1e-3))
      for call in ("F.linear(x, w)", "x @ x.transpose(1, 2)", "F.layer_norm(x, (96,))", "F.rms_norm(x, (96,))",
                   "x.softmax(-1)", "x.log_softmax(-1)", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)",
                   "torch.sigmoid(x)", "torch.tanh(x)", "x.exp()", "x.var(-1)", "x.std()", "x.sum()", "x.norm(dim=-1)",
                   "x + y", "x * y", "x / y", "x * 0.1767766952966369", "x - 0.1", "x.max(-1)", "x.topk(3)",
                   "F.scaled_dot_product_attention(x, y, y)",
                   "F.scaled_dot_product_attention(y + 2, y + 2, y + 2)", "torch.einsum('bnc,bmc->bnm', x, y)",
                   "F.linear(x.half(), w.half())", "x.half().softmax(-1)", "x.double().softmax(-1)",
                   "F.dropout(x, 0.1, training=False)", "torch.cat([x, y], 1)", "x.transpose(1, 2).softmax(-1)")],
    ("F.gelu(x)", {"x": draw(1000) * np.float32(0.1) - 5}),  # the tail, where 1 + erf(x) cancels
    ("F.layer_norm(x, (8,))", {"x": draw(2, 8) + 1000}),  # two rows: the better side may be lucky
    ("x.var(0)", {"x": draw(100) + SHIFT}),
    # Windows that overlap, of more elements than the inputs have for each output.
    *[(call, {"x": np.random.default_rng(0).random((1, 1280, 7, 7), "f4")})
      for call in ("F.adaptive_avg_pool2d(x, (1, 41))", "F.adaptive_avg_pool2d(x, (32, 1))",
                   "F.avg_pool2d(x, 5, 1, 2)", "F.adaptive_avg_pool2d(x, (None, 45))")],
    ("torch.log(x)", {"x": draw(100)}),  # NaN for negative numbers, as it should be
    ("x * x.conj()", {"x": (draw(50) + 1j * draw(50, seed=1)).astype("complex64")}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "terms"),
    [
        (lambda x: F.adaptive_avg_pool2d(x, (1, 41)), 14),  # windows of 7 rows and 1 or 2 columns
        (lambda x: F.adaptive_avg_pool2d(x, (None, 7)), 1),
        (lambda x: F.adaptive_avg_pool2d(x, 1), 49),
        (lambda x: F.avg_pool2d(x, 5, 1, 2), 25),
        (lambda x: F.avg_pool1d(x[0], (3,), 1), 3),
        (lambda x: x.cumsum(1), 6),
        (lambda x: x.mean((2, 3)), 49),
        (lambda x: F.linear(x, torch.ones(7)), 8),  # and the bias
        (lambda x: F.conv_transpose2d(x, torch.ones(6, 2, 3, 3)), 55),  # 6 channels of 9 places, and the bias
    ],
)
def test_terms_of_a_sum(call, terms):
    class Look(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            api = apis.identify(func)
            if api.name in SUM_OF_PRODUCTS:
                found.append(sum_length(api.name, apis.bind(api, args, kwargs or {}), [result]))
            return result

    found = []
    with Look():
        call(torch.ones(2, 6, 7, 7))
    assert found == [terms]


def test_nothing_is_suspected_on_portable_kernels():
    frames = check_many(ORDINARY, "cpu", "cpu:baseline")
    rows = pd.concat([frame.assign(call_text=call) for (call, _), frame in zip(ORDINARY, frames, strict=True)])
    assert (rows.status == "ok").all(), rows[rows.status != "ok"][["call_text", "message"]].to_string()
    other = rows[~rows.evidence.isin(["identical", "rounding"])]
    assert other.empty, other[["call_text", "evidence", "reason"]].to_string()
    assert (rows.evidence == "rounding").sum() > 20, "the two platforms do differ"
    # The paper's rule reports rounding as a bug where values are large.
    assert (rows.paper == "fail").any()


def test_one_pass_variance_of_channels_last_kernels_is_a_suspect_for_every_norm():
    """PyTorch issue 121651 is about batch norm; group norm's channels-last kernel has the same defect, far worse."""
    calls = [(call, {"x": IMAGE + SHIFT})
             for call in ("F.batch_norm(x, None, None, training=True)", "F.group_norm(x, 4)", "F.relu(x)",
                          "F.max_pool2d(x, 2)", "F.instance_norm(x)", "x.mean((2, 3))")]  # fmt: skip
    found = [frame.iloc[0] for frame in check_many(calls, "cpu", "cpu:channels_last")]
    assert [row.evidence for row in found[:2]] == ["suspect", "suspect"]
    assert found[0].candidate_error > 8 * found[0].reference_error and "on the candidate" in found[0].reason
    assert [row.evidence for row in found[2:] if row.evidence not in ("identical", "rounding")] == []


def test_a_platform_of_another_dtype_is_judged_by_its_own_rounding():
    calls = [(call, {"x": TOKENS + 10, "w": MATRIX})
             for call in ("F.linear(x, w)", "F.layer_norm(x, (96,))", "x.softmax(-1)", "x.var(-1)", "x > 10",
                          "F.relu(x)", "x.round()")]  # fmt: skip
    found = [frame.iloc[0].evidence for frame in check_many(calls, "cpu", "cpu:bf16")]
    assert found == ["rounding"] * 4 + ["unjudged", "rounding", "unjudged"]


KINDS = """
- {id: silu, inputs: {x: "np.array([-np.inf, 0, 1], 'float32')"}, call: F.silu(x), evidence: nan}
- {id: huge-group-norm, inputs: {x: "rng.standard_normal((2, 8, 5)).astype('float32') * np.float32(1e30)"},
   call: "F.group_norm(x, 2)", paper: pass, evidence: both-suspect}
- {id: huge-double, inputs: {x: "rng.standard_normal((4, 64)) * 1e30"}, call: "F.layer_norm(x, (64,))",
   paper: pass, evidence: rounding}
- {id: two-calls, inputs: {x: "rng.standard_normal((8, 4))"}, call: "torch.relu(x.float()).half()", paper: pass,
   evidence: identical}
- {id: wrong-expectation, inputs: {x: "np.ones(3)"}, call: torch.relu(x), evidence: suspect}
- {id: half-apart, compare: values, inputs: {x: "np.array([1.0], 'float32')", y: "np.array([1.5], 'float32')"},
   paper: fail, evidence: unjudged}
- {id: no-such-machine, inputs: {x: "np.ones(3)"}, call: torch.relu(x), candidate: "cpu on the moon", evidence: nan}
- {id: raises, inputs: {x: "np.ones((2, 3))"}, call: x @ x, evidence: exception}
"""


def test_files_of_known_behaviour(tmp_path):
    (tmp_path / "kinds.yaml").write_text(KINDS)
    found = {result["id"]: result for result in check_file(tmp_path / "kinds.yaml")}
    assert {name: result["ok"] for name, result in found.items()} == {
        "silu": True, "huge-group-norm": True, "huge-double": True, "two-calls": True, "wrong-expectation": False,
        "half-apart": True, "no-such-machine": None, "raises": True,
    }  # fmt: skip
    assert [call["api"] for call in found["two-calls"]["calls"]] == ["float", "relu", "half"]
    assert found["no-such-machine"]["skipped"].startswith("unknown platform 'cpu on the moon'")
    assert json.loads(json.dumps(list(found.values()), allow_nan=False))[0]["evidence"] == "nan"


KNOWN = """
- {id: gelu-of-minus-infinity, inputs: {x: "np.array([-np.inf, -1, 0, 1], 'float32')"}, call: F.gelu(x),
   paper: pass, evidence: nan}
- {id: layer-norm-overflow, inputs: {x: "rng.standard_normal((4, 64)).astype('float32') * np.float32(1e30)"},
   call: "F.layer_norm(x, (64,))", evidence: nan}
- {id: batch-norm-overflow, inputs: {x: "rng.standard_normal((8, 4, 5, 5)).astype('float32') * np.float32(1e30)"},
   call: "F.batch_norm(x, None, None, training=True)", paper: pass, evidence: both-suspect}
- {id: batch-norm-channels-last, inputs: {x: "(rng.standard_normal((4, 33, 17, 17)) + 1e4).astype('float32')"},
   call: "F.batch_norm(x, None, None, training=True)", candidate: cpu with memory format channels_last,
   paper: fail, evidence: suspect}
- {id: one-ulp, compare: values, api: add, inputs: {x: "np.array([20251.50781], 'float32')",
   y: "np.array([20251.50977], 'float32')"}, paper: fail, evidence: rounding}
- {id: wide-conv2d, inputs: {x: "rng.uniform(-357, 1402, (2, 3, 64, 64)).astype('float32')",
   w: "rng.uniform(-38.6, 37.7, (64, 3, 3, 3)).astype('float32')"}, call: "F.conv2d(x, w)", paper: fail,
   evidence: rounding}
- {id: wide-linear, inputs: {x: "rng.uniform(-400, 400, (64, 3072)).astype('float32')",
   w: "rng.uniform(-40, 40, (768, 3072)).astype('float32')"}, call: "F.linear(x, w)", paper: fail, evidence: rounding}
- {id: bf16-conv2d, inputs: {x: "rng.standard_normal((2, 16, 32, 32)).astype('float32')",
   w: "rng.standard_normal((16, 16, 3, 3)).astype('float32')"}, call: "F.conv2d(x.bfloat16(), w.bfloat16())",
   evidence: rounding}
- {id: tf32, inputs: {x: "np.ones((1, 1, 3, 3), 'float32')", w: "np.ones((1, 1, 3, 3), 'float32')"},
   call: "F.conv2d(x, w)", candidate: "cuda (default flags), or simdev with tf32 emulation", evidence: config}
"""  # PyTorch issues 185770, 162489 (two), 121651, 132998, 132997, 132999, (none), 107514


def test_infinities_of_gelu_by_both_rules():
    """PyTorch issue 185770. NaN on both sides differs in nothing; the kernel of oneDNN for AVX-512 has another one at
    +inf that the portable kernel has not, which the paper counts among NaN bugs (section IV-D)."""
    entry = ("F.gelu(x)", {"x": np.array([-np.inf, -1, 0, 1, np.inf], "float32")})
    narrow = Platform("avx2", "cpu", env={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    (row,) = sl.check(*entry, reference=narrow).to_dict("records")
    assert (row["paper"], row["evidence"], row["local_one_sided"]) == ("pass", "nan", 0)
    assert "not finite where a number is right (the limit at infinity)" in row["reason"]
    (row,) = sl.check(*entry).to_dict("records")
    one_sided = bool(F.gelu(torch.from_numpy(entry[1]["x"]))[-1].isnan())  # a kernel for single numbers has a limit
    assert (row["paper"], row["symptom"]) == (("fail", "nan") if one_sided else ("pass", ""))
    assert row["evidence"] == "nan"


def test_the_command_line_checks_a_file(tmp_path):
    (tmp_path / "known.yaml").write_text(KNOWN)
    command = [str(Path(sys.executable).parent / "sortlib"), "check", "known.yaml"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert len(found) == 9
    assert [result["id"] for result in found if result["ok"] is not True and not result["skipped"]] == []
    if not torch.cuda.is_available():
        assert found[-1]["skipped"].startswith("platform 'cuda' is not available")


@pytest.mark.parametrize(
    "text, message",
    [
        ("- {id: a}", "cases.yaml: a: key 'call' is missing"),
        ("- {id: a, inputs: {}, cal: x}", "cases.yaml: a: unknown key 'cal'; did you mean 'call'? valid: api"),
        ("- {id: a, inputs: {}, call: x}\n" * 2, "cases.yaml: a: entries 1 and 2 have this id"),
        ("- {id: a, inputs: {}, call: 5}", "cases.yaml: a: call: must be a Python expression as text, not 5"),
        ("- 5", "cases.yaml: item 1 is 5; must be a list of entries"),
        ("- {id: a, inputs: {}, call: x, colour: red}", "cases.yaml: a: unknown key 'colour'; valid: api, backward"),
        ("id: a", "cases.yaml: holds a dict; must be a list of entries"),
        ("[]", "cases.yaml: is empty; must be a list of entries"),
        ("- {id: a, inputs: {x: exit(3)}, call: x}", "cases.yaml: a: input 'x': SystemExit: 3"),
        ("- {id: a, inputs: {x: np.nothing}, call: x}", "cases.yaml: a: input 'x': AttributeError"),
        ("- {id: a, inputs: {x: 'np.ones(2)'}, compare: values}", "cases.yaml: a: 'compare: values' needs two inputs"),
        ("- [", "cases.yaml, line 1: broken YAML"),
    ],
)
def test_mistakes_in_a_file_get_one_line(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("cases.yaml").write_text(text)
    with pytest.raises(SortError) as error:
        check_file("cases.yaml")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_mistakes_in_an_expression_get_one_line():
    for expression, message in [
        ("F.gelu(y)", "F.gelu(y): NameError: name 'y' is not defined"),
        ("1 + 1", "1 + 1: calls no PyTorch API on its inputs (x)"),
        ("exit(3)", "exit(3): SystemExit: 3"),
        ("torch.ones(3).exp()", "torch.ones(3).exp(): calls no PyTorch API on its inputs (x)"),
    ]:
        with pytest.raises(SortError) as error:
            sl.check(expression, {"x": np.ones(2)})
        assert str(error.value) == message


def test_a_function_with_writes_through_views_is_rebuilt_exactly():
    def call(x, scale):
        y = x * scale
        y[0] = 7  # later calls read what the row's write left in the whole tensor
        z = y[1]
        z.add_(1)
        return torch.relu(y) @ torch.eye(3)

    found = sl.check(call, {"x": np.array([[1, -2, 3], [4, 5, 6]], "float32"), "scale": 2.0})
    assert found.api.tolist() == ["mul", "setitem", "getitem", "add", "relu", "matmul"]
    assert set(found.evidence) == {"identical"}
    relu = found[found.api == "relu"].iloc[0]
    assert (relu.reference_minimum, relu.reference_maximum) == (7, 13)  # rows 7 7 7 and 9 11 13


def test_two_results_without_their_call():
    assert compare_values(np.ones(3), np.ones(3)).evidence.tolist() == ["identical"]
    assert compare_values(np.float32([1, np.nan]), np.float32([1, 2])).evidence.tolist() == ["nan"]
    with pytest.raises(SortError, match="the shapes differ"):
        compare_values(np.ones(3), np.ones(4))
