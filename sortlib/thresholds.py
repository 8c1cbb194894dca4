"""Every constant that decides over a verdict, in one table, each with its source.

Bounds are in units of the unit roundoff u of the dtype that computed (2**-24 for float32). Four families of APIs:

======== ============================================= =====================================================
family   members                                       what rounding explains, in u
======== ============================================= =====================================================
exact    moves, selects or changes a sign              0
rounded  one operation that IEEE 754 rounds once       ``ROUNDED_FACTOR`` * |y|
sum      sums of n products or terms                   ``SUM_FACTOR`` * min(sqrt n, n / 4) * (sum of |terms|)
other    everything else                               ``OWN_FACTOR`` and the change under moved inputs
======== ============================================= =====================================================
"""

from __future__ import annotations

# |a - b| <= 1e-3 for every element: the paper's rule, section IV-E.
PAPER_THRESHOLD = 1e-3

# A suspect's error is at least this many times the other side's. PyTorch's own comparison of a result with an eager
# one through float64 allows 2 to 10 times (torch._dynamo.utils.same); maintainers close reports below that.
CLEARLY_WORSE = 8.0
# Where both sides lie within what conditioning excuses, the ratio must also be no accident of few samples: it grows
# by FEW / n below FEW independent values (rows of a layer norm, channels of a batch norm). The largest of n
# independent errors is 8 times smaller than expected with probability below (1/4)**n.
FEW = 16

# Correct rounding is off by 1 u at most; half-precision types are computed in float32 and rounded twice.
ROUNDED_FACTOR = 2.0
# Higham and Mary (2019), "A new approach to probabilistic rounding error analysis": a sum of n terms is off by a
# small constant times sqrt(n) u sum|terms| with probability close to 1; the worst case is n u sum|terms|.
SUM_FACTOR = 4.0
# A few roundings of the result and of intermediates of its size: elementary functions of vector libraries promise
# 1 to 4 units in the last place (SLEEF, SVML), and such calls chain two or three of them.
OWN_FACTOR = 8.0
# The change under inputs moved by u is sampled by one draw of random signs, which underestimates the largest.
CONDITION_FACTOR = 8.0
# A gate in [0, 1] that is computed as 1 + erf or 1 / (1 + exp) has an absolute error of some u, and multiplies x.
GATE_FACTOR = 4.0

# Without a float64 reference, a difference of up to this many units in the last place of the tensor's largest value
# is what two correct roundings can leave.
ULP_WITHOUT_TRUTH = 2.0

EXACT = {
    "relu", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "abs", "neg", "positive", "maximum", "minimum", "max", "min", "amax", "amin", "sign",
    "floor", "ceil", "trunc", "round", "sort", "topk", "tril", "triu", "diag", "cummax", "cummin", "isnan", "sgn",
}  # fmt: skip
ROUNDED = {"add", "sub", "mul", "div", "sqrt", "square", "reciprocal"}
CONVERSIONS = {"to", "float", "half", "bfloat16", "double", "type", "type_as"}
GATED = {"gelu", "silu", "mish", "hardswish", "glu", "logsigmoid", "softplus", "selu", "elu", "celu", "tanhshrink"}
ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
NORMALISING = {"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm"}
# A rounded input can land on the other side of a step, which no bound describes.
DISCONTINUOUS = {"round", "floor", "ceil", "trunc", "sign", "sgn", "fmod", "remainder", "floor_divide", "frac",
                 "argsort", "histc", "bucketize"}  # fmt: skip
# Chains of several reductions; the longest dimension of any argument stands for their length.
COMPOSITE = {
    *ATTENTION, "cross_entropy", "nll_loss", "mse_loss", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "cdist", "cosine_similarity", "interpolate", "grid_sample",
}  # fmt: skip
# Positions of equal values may be chosen differently (pt2-bug-report.yml: do not compare indices of max and min).
INDICES = {"argmax", "argmin", "argsort", "topk", "sort", "max", "min", "kthvalue", "median", "mode", "nanmedian",
           "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
           "adaptive_max_pool3d", "cummax", "cummin", "msort", "aminmax"}  # fmt: skip
# NaN is the right answer outside their domain, for opposite infinities, or for too few elements.
UNDEFINED = {
    "pow", "float_power", "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "acos", "asin", "acosh", "atanh", "erfinv",
    "logit", "lgamma", "digamma", "polygamma", "fmod", "remainder", "floor_divide", "div", "add", "sub", "mul", "var",
    "std", "var_mean", "std_mean", "mean", "median", "nanmean", "nanmedian", "sin", "cos", "tan", "xlogy",
    "conv1d", "conv2d", "conv3d", "linear", "matmul", "mm", "bmm", "mv", "dot", "sum", "cumsum", "prod", "cumprod",
}  # fmt: skip
