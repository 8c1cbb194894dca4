"""What conditioning excuses is computed only where an error is near the rounding of the result; no verdict changes."""

import numpy as np
import pandas as pd
import pytest
from test_judging import HARMLESS, TOKENS, draw

from sortlib.checking import check_many
from sortlib.judging import judge
from sortlib.runner import campaign
from sortlib.thresholds import NEAR, Table

RATIOS = ["reference_ratio", "candidate_ratio", "reference_own_ratio", "candidate_own_ratio"]
SHIFTS = (0.0, 30.0, 1e4)
CALLS = [
    *[(call, {"x": TOKENS[:2] + np.float32(shift), "y": draw(2, 50, 96, seed=1)}) for shift in SHIFTS for call in (
        "F.layer_norm(x, (96,))", "F.rms_norm(x, (96,))", "x.var(-1)", "x.std()", "x.softmax(-1)", "x.log_softmax(-1)",
        "F.normalize(x, dim=-1)", "F.cosine_similarity(x, y, -1)", "torch.logsumexp(x, -1)", "x.cumsum(-1)", "x.exp()",
        "torch.sin(x)", "torch.log1p(x.abs())", "x - 0.1", "F.gelu(x)", "F.silu(x)", "F.softplus(x)",
        "F.scaled_dot_product_attention(x, x, y)", "F.mse_loss(x, y)", "x.norm(dim=-1)", "torch.lerp(x, y, 0.3)",
        "F.instance_norm(x)", "x.half().softmax(-1)", "x.bfloat16().var(-1)", "torch.erfinv(y.tanh())",
        "x[:, :1].prod(-1)", "x.cumprod(-1)", "torch.hypot(x, y)",
        "F.interpolate(x, scale_factor=1.7, mode='linear')")],
    *[(call, {"x": draw(2, 8, 6, 6) + np.float32(shift)}) for shift in SHIFTS for call in (
        "F.group_norm(x, 2)", "F.batch_norm(x, None, None, training=True)", "F.local_response_norm(x, 5)",
        "F.interpolate(x, size=(9, 20), mode='bicubic')", "F.lp_pool2d(x, 2, 2)", "x.var((0, 2, 3))")],
    ("F.gelu(x)", {"x": draw(1000) * np.float32(0.1) - np.float32(3.5)}),
]  # fmt: skip


@pytest.fixture(scope="module")
def both():
    """(rows with bounds completed where they are needed, rows with whole bounds from the start)."""
    lazy = pd.concat(check_many(CALLS), ignore_index=True)
    asked = campaign._ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "_ask", lambda *args, **request: asked(*args, **{**request, **(
            {"quick": False} if "quick" in request else {})}))  # fmt: skip
        eager = pd.concat(check_many(CALLS), ignore_index=True)
    return tuple(rows.astype(dict.fromkeys(RATIOS, float)).assign(partial=rows.partial.astype(bool))
                 for rows in (lazy, eager))  # fmt: skip


def test_lazy_and_whole_bounds_give_the_same_verdicts(both):
    lazy, eager = both
    assert lazy.api.tolist() == eager.api.tolist() and (lazy.status == "ok").all()
    assert lazy.evidence.tolist() == eager.evidence.tolist()
    assert not eager.partial.any() and 20 < lazy.partial.sum() < len(lazy)


def test_completed_bounds_are_the_whole_ones(both):
    lazy, eager = both
    done = ~lazy.partial & lazy.candidate_ratio.notna() & ~lazy.family.isin(["sum", "exact", "rounded", "steps"])
    assert done.sum() >= 8, lazy[done][["api", "family"]].to_string()
    for name in RATIOS:
        np.testing.assert_allclose(lazy[name][done], eager[name][done], rtol=0.01, err_msg=name)


def test_what_was_left_out_lies_within_the_bound(both):
    lazy, eager = both
    left = lazy.partial & lazy.candidate_ratio.notna()
    for side in ("reference", "candidate"):
        assert (lazy[f"{side}_own_ratio"][left] <= NEAR).all()
        assert (eager[f"{side}_ratio"][left] <= lazy[f"{side}_ratio"][left] * 1.001).all()


def test_a_table_that_allows_less_does_not_accuse_by_what_was_not_computed():
    table = Table(({"api": "linear", "bounds": 0.1, "source": "a test"},))
    alike = {**HARMLESS, "partial": True, "reference_ratio": 0.3, "candidate_ratio": 0.3, "reference_own_ratio": 0.3,
             "candidate_own_ratio": 0.3}  # fmt: skip

    def verdict(row):
        (judged,) = judge(pd.DataFrame([row]), thresholds=table).to_dict("records")
        return str(judged["verdict"]), judged["reason"]

    assert verdict(alike)[0] == "rounding"
    assert verdict({**alike, "partial": False})[0] == "both-suspect"
    assert verdict({**alike, "reference_dtype": "float64"})[0] == "rounding"
    # The other side shows that the error can be avoided.
    found = verdict({**alike, "candidate_error": 1e-5})
    assert found[0] == "suspect" and "3 times the rounding of the result, more was not computed" in found[1]
