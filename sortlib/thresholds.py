"""Every constant that decides over a verdict, in one table, each with its source.

Bounds are in units of the unit roundoff u of the dtype that computed (``UNITS``). ``sortlib thresholds`` prints the
table, ``Table.read`` takes a user's own rows. Families of APIs, and what rounding explains, in u:

======== ======================================= ===========================================================
family   members                                 what rounding explains
======== ======================================= ===========================================================
exact    move, select, change a sign             0
rounded  one operation, rounded once             ``ROUNDED_FACTOR`` * |y|
sum      sums of n products or terms             ``SUM_FACTOR`` * min(sqrt n, n / 4) * (sum of |terms|)
matrix   factor or solve matrices of order n     (``OWN_FACTOR`` + ``MATRIX_FACTOR`` * n) * scale, by invariants
special  special functions                       ``SPECIAL_FACTOR`` * max(|y|, 1)
steps    whole parts of computed values          both sides of a step ``OWN_FACTOR`` u away
masked   dropouts                                2 * ``ROUNDED_FACTOR`` * |y| where kept, and the share dropped
other    everything else                         ``OWN_FACTOR`` and the change under moved inputs
======== ======================================= ===========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sortlib.errors import SortError, choices

# |a - b| <= 1e-3 for every element: the paper's rule, section IV-E.
PAPER_THRESHOLD = 1e-3

# A suspect's error is at least this many times the other side's. PyTorch's own comparison of a result with an eager
# one through float64 allows 2 to 10 times (torch._dynamo.utils.same); maintainers close reports below that.
CLEARLY_WORSE = 8.0
# What conditioning excuses is computed where an error is more than this share of the rounding of the result alone; the
# rest lies within the bound in any case. Where a user's table allows less than this share, it stays excused, unless the
# other side is clearly better (``partial`` in the rows).
NEAR = 0.5
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
# A gate in [0, 1] that is computed as 1 + erf or 1 / (1 + exp) has an absolute error of some u, and multiplies x:
# 1 to 2 u of the function (4 ULP at most in SLEEF and SVML), 1/2 each for the sum, the quotient and the product.
GATE_FACTOR = 4.0
# That is the rounding of a typical element; where an error comes near it, each element counts by its own size times
# this. oneDNN's tests accept its gelu within 4e-6, relative, and absolute where the gate closes (x from -2 to -4;
# tests/benchdnn/eltwise/eltwise.cpp, check_abs_err: catastrophic cancellation), which is 16 u of x = -4 and more of
# the others. Its polynomials on AVX-512 are off by 6 u |x| at x = 3.5, SLEEF's functions by 1.
CLOSED_GATE_FACTOR = 16.0

# Interpolation of n pixels rounds coordinates up to n three times (scale, product, offset), so its weights are off by
# 3 n u, and the result by that times the difference of neighbours; cubic weights are up to 1.5 times as steep.
COORDINATE_FACTOR = 4.5
# Backward-stable algorithms on matrices of order n: computed results are exact for inputs moved by a small multiple of
# n u (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, chapters 9, 10 and 19 on LU, Cholesky and
# QR: the proofs give low powers of n times the norm and note that practice stays below n).
MATRIX_FACTOR = 4.0
# Approximations of special functions (Cephes and its ports in ATen) state absolute errors of a few times 1e-7 in
# single precision for functions that oscillate or cancel, so results below 1 are held to the rounding of 1.
SPECIAL_FACTOR = 16.0

# The share that a dropout drops is binomial: further from p than this happens once in 1e15.
SIGMAS = 8.0
# Slower than this many times and seconds, twice: no accident of scheduling, and more than lost vector instructions.
SLOW_TIMES, SLOW_SECONDS = 100.0, 0.5

# Without a float64 reference, a difference of up to this many units in the last place of the tensor's largest value
# is what two correct roundings can leave.
ULP_WITHOUT_TRUTH = 2.0

SPECIAL = {
    "lgamma", "digamma", "polygamma", "mvlgamma", "erfinv", "erfcx", "erfc", "log_ndtr", "ndtri", "i0", "igamma",
    "igammac", "sinc", "special.zeta", "special.i0e", "special.i1", "special.i1e", "special.ndtri", "special.log_ndtr",
    "special.erfcx", "special.ndtr", "special.entr", "special.xlog1py", "special.polygamma", "special.sinc",
}  # fmt: skip
EXACT = {
    "relu", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "abs", "neg", "positive", "maximum", "minimum", "max", "min", "amax", "amin", "sign",
    "floor", "ceil", "trunc", "round", "sort", "topk", "tril", "triu", "diag", "cummax", "cummin", "isnan", "sgn",
    "clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "threshold", "fmax", "fmin", "msort", "kthvalue", "mode",
    "diagonal", "diag_embed", "take", "take_along_dim", "masked_select", "copysign", "nan_to_num", "aminmax",
}  # fmt: skip
ROUNDED = {"add", "sub", "mul", "div", "sqrt", "square", "reciprocal"}
CONVERSIONS = {"to", "float", "half", "bfloat16", "double", "type", "type_as"}
INTEGER_CONVERSIONS = {"int": "int32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8"}
GATED = {"gelu", "silu", "mish", "hardswish", "glu", "logsigmoid", "softplus", "selu", "elu", "celu", "tanhshrink"}
ATTENTION = {
    "scaled_dot_product_attention", "multi_head_attention_forward", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_native_multi_head_attention",
}  # fmt: skip
NORMALISING = {"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm"}
# A rounded input can land on the other side of a step, which no bound describes.
DISCONTINUOUS = {"round", "floor", "ceil", "trunc", "sign", "sgn", "fmod", "remainder", "floor_divide", "frac",
                 "argsort", "histc", "bucketize", "frexp"}  # fmt: skip
# Counts or whole parts of values that are themselves computed with rounding: at a step, both neighbours are right.
HISTOGRAMS = {"histc", "histogram", "histogramdd"}
PERIODIC = {"remainder", "fmod"}
STEPS = {"floor_divide", *PERIODIC, *HISTOGRAMS}
ON_GRIDS = {"grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"}
# Terms that cancel before they are averaged: all inputs move the same way, since equal terms are rounded alike.
LOSSES = {"kl_div", "poisson_nll_loss", "gaussian_nll_loss", "binary_cross_entropy", "cross_entropy",
          "binary_cross_entropy_with_logits"}  # fmt: skip
# With an infinity among the inputs, 0 times it and its difference from another decide, and with them the order of
# evaluation (PyTorch's note on numerical accuracy: extremal values).
COMBINING = {"prod", "cumprod", "cov", "corrcoef", "cdist"}
# Roots of sums of powers. PyTorch's note on numerical accuracy (extremal values) says of them that powers overflow
# where the result would not.
NORMS = {"norm", "linalg.vector_norm", "linalg.norm", "linalg.matrix_norm", "dist"}
# Where an infinity is an ordinary value.
MASK_ARGUMENTS = {"attn_mask", "mask", "key_padding_mask", "attn_bias"}
# Read memory by address. What lies between the elements of a strided tensor is no part of its value.
ADDRESSED = {"as_strided", "as_strided_copy", "as_strided_scatter", "set", "resize", "resize_as"}
# Fractional coordinates of n pixels, see COORDINATE_FACTOR.
COORDINATES = {"interpolate", "affine_grid", *ON_GRIDS}
# Work on whole matrices, beside everything below torch.linalg except what combines vectors.
MATRIX = {"inverse", "det", "slogdet", "logdet", "matrix_exp", "matrix_power", "cholesky", "cholesky_solve",
          "cholesky_inverse", "lu_solve", "triangular_solve", "pinverse", "geqrf", "orgqr", "ormqr", "svd", "qr",
          "lobpcg", "pca_lowrank", "svd_lowrank"}  # fmt: skip
NOT_MATRIX = {"linalg.vector_norm", "linalg.cross", "linalg.vecdot", "linalg.norm", "linalg.diagonal", "linalg.vander"}
# Why two different results may both be right.
BY_ADDRESS = "it reads memory between the elements of its input"
DRAWN = "random numbers"
OUT_OF_RANGE = "numbers outside the range of the integer type, for which C++ defines no result"
UNCOMPARABLE = {BY_ADDRESS, DRAWN, OUT_OF_RANGE}
# Activations with a limit at infinity: NaN there is a defect that the float64 kernel shares (PyTorch issue 185770).
LIMITS = GATED | {"sigmoid", "tanh", "hardsigmoid", "softsign", "erf", "erfc", "hardshrink", "softshrink"}
# The output is the input times a constant, or zero: a mask decides which, and platforms draw different masks.
MASKED = {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "native_dropout"}
# Saved outputs of size 1 that the backward pass subtracts from 1, or from each other.
SATURATING = {"sigmoid", "tanh", "softmax", "log_softmax", "softmin", "hardsigmoid", "logsigmoid", "special.i0e",
              "special.i1e"} | GATED | ATTENTION  # fmt: skip
# Gradients that are exponentials of sums of logarithms, as those of 200 and more: an exponent of size e has a relative
# error of e u (torch/csrc/autograd/FunctionsManual.cpp, ATen/native/LossCTC.cpp).
EXPONENTS = {"logcumsumexp", "ctc_loss", "log_ndtr", "special.log_ndtr"}
# Which two elements a rank between them weighs is computed from the number of elements, see COORDINATE_FACTOR.
RANKS = {"quantile", "nanquantile"}
# A derivative within this factor of the largest number may overflow on the way, as the cube in that of 1 / sqrt(x).
OVERFLOW_MARGIN = 16.0
# Chains of several reductions; the longest dimension of any argument stands for their length.
COMPOSITE = {
    *ATTENTION, "cross_entropy", "nll_loss", "mse_loss", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "cdist", "cosine_similarity", "interpolate", "grid_sample",
}  # fmt: skip
# Positions of equal values may be chosen differently (pt2-bug-report.yml: do not compare indices of max and min).
INDICES = {"argmax", "argmin", "argsort", "topk", "sort", "max", "min", "kthvalue", "median", "mode", "nanmedian",
           "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
           "adaptive_max_pool3d", "cummax", "cummin", "msort", "aminmax"}  # fmt: skip


# ---- the table by family and dtype ----

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
         "complex128": 2.0**-53, "complex64": 2.0**-24, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}  # fmt: skip

# family -> (what rounding explains, in u; where that comes from)
FAMILIES = {
    "exact": ("0", "moves or selects elements"),
    "rounded": (f"{ROUNDED_FACTOR:g} |y|", "IEEE 754: correct rounding; half types round twice, through float32"),
    "sum": (f"{SUM_FACTOR:g} min(sqrt n, n/4) sum|terms|", "Higham and Mary 2019; the worst case is n sum|terms|"),
    "matrix": (f"({OWN_FACTOR:g} + {MATRIX_FACTOR:g} n) scale of each invariant",
               "Higham 2002, chapters 9, 10, 19: backward stability"),
    "special": (f"{SPECIAL_FACTOR:g} max(|y|, 1)", "error tables of Cephes, from which ATen's functions are taken"),
    "steps": (f"{OWN_FACTOR:g} |y|, or the step {OWN_FACTOR:g} u away", "a step's argument is computed with rounding"),
    "masked": (f"{2 * ROUNDED_FACTOR:g} |y| where kept; share within {SIGMAS:g} sigma of p", "binomial distribution"),
    "random": ("nothing", "random numbers differ between platforms"),
    "other": (f"{OWN_FACTOR:g} |y| sqrt-long, + {CONDITION_FACTOR:g} times the change under inputs moved by u",
              "SLEEF and SVML: 1 to 4 units in the last place for each function; conditioning"),
}  # fmt: skip


class Limit(NamedTuple):
    """What one call may show: multiples of the derived bound, units in the last place of the output's largest value
    that are rounding in any case, and how many times worse than the other side a suspect is."""

    bounds: float = 1.0
    ulp: float = 0.0
    clearly_worse: float = CLEARLY_WORSE


@dataclass(frozen=True)
class Table:
    """Rows that change what single APIs, families and dtypes are allowed; without rows the derived bounds hold.

    ``rows`` are dictionaries of ``api`` or ``family``, ``dtype`` (any if absent), ``bounds``, ``ulp``,
    ``clearly_worse`` and ``source``. The most special row that names a call decides: an API before a family, a dtype
    before any.
    """

    rows: tuple = ()

    @classmethod
    def read(cls, path) -> Table:
        """Read a YAML list of rows.

        Raises
        ------
        SortError
            The file cannot be read, or a row is wrong: says where and what is valid.
        """
        from sortlib.config import read_yaml  # pydantic is missing on a machine that only compares

        rows = read_yaml(path, listed="rows such as {api: gelu, bounds: 2, source: a measurement}")
        for number, row in enumerate(rows, 1):
            _check(row, f"{path}: row {number}")
        return cls(tuple(rows))

    def of(self, api, family, dtype) -> Limit:
        """The limit of a call; dtype is that of the reference's output."""
        if not self.rows:
            return _DERIVED
        best, rank = _DERIVED, -1
        for row in self.rows:
            if row.get("api", api) != api or row.get("family", family) != family or row.get("dtype", dtype) != dtype:
                continue
            special = 2 * ("api" in row) + ("dtype" in row)
            if special >= rank:
                given = {name: float(row[name]) for name in Limit._fields if name in row}
                best, rank = Limit(**given), special
        return best

    def show(self) -> list[dict]:
        """A row for each family and dtype, and one for each given row: family, dtype, u, bound, bounds, ulp,
        clearly_worse, source."""
        shown = []
        for family, (bound, source) in FAMILIES.items():
            for dtype, unit in UNITS.items():
                row = {"api": "", "family": family, "dtype": dtype, "u": unit, "bound": bound}
                shown.append({**row, **self.of(None, family, dtype)._asdict(), "source": source})
        for row in self.rows:
            name, dtype = row.get("family", ""), row.get("dtype", "any")
            shown.append({"api": row.get("api", ""), "family": name, "dtype": dtype, "u": UNITS.get(dtype),
                          "bound": "as derived", **Limit()._asdict(), **row})  # fmt: skip
        return shown


_DERIVED = Limit()
_KEYS = {"api", "family", "dtype", "bounds", "ulp", "clearly_worse", "source"}


def _check(row, where):
    for key in row:
        if key not in _KEYS:
            raise SortError(f"{where}: unknown key {key!r}; valid: {', '.join(sorted(_KEYS))}")
    if ("api" in row) == ("family" in row):
        raise SortError(f"{where}: needs either api or family")
    if "family" in row and row["family"] not in FAMILIES:
        raise SortError(f"{where}: no family {row['family']!r}; valid: {choices(FAMILIES, len(FAMILIES))}")
    if "dtype" in row and row["dtype"] not in UNITS:
        raise SortError(f"{where}: no floating-point dtype {row['dtype']!r}; valid: {choices(UNITS, len(UNITS))}")
    if not isinstance(row.get("source"), str) or not row["source"].strip():
        raise SortError(f"{where}: needs a source: where its numbers come from")
    limits = [name for name in Limit._fields if name in row]
    if not limits:
        raise SortError(f"{where}: sets nothing; give {choices(Limit._fields)}")
    for name in limits:
        least = {"bounds": 0, "ulp": 0, "clearly_worse": 1}[name]
        value = row[name]
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf")
        if wrong or (name == "bounds" and value == 0):
            valid = "above 0" if name == "bounds" else f"from {least} on"
            raise SortError(f"{where}: {name}: must be a number {valid}, not {value!r}")
