"""Facts about PyTorch's APIs that nothing in PyTorch lists; ``tests/test_apis.py`` proves them by executing calls."""

from __future__ import annotations

# The 15 APIs of the paper's Table I, canonical name -> the paper's spelling (section IV-E).
PAPER_APIS = {
    "flatten": "flatten",
    "mul": "__mul__",
    "div": "div",
    "softmax": "softmax",
    "adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "matmul": "matmul",
    "max_pool2d": "max_pool2d",
    "batch_norm": "batch_norm",
    "dropout": "dropout",
    "relu": "relu",
    "conv2d": "conv2d",
    "gelu": "gelu",
    "linear": "linear",
    "layer_norm": "layer_norm",
    "add": "__add__",
}

# Spellings that PyTorch documents as aliases, and the names that Python's operators arrive under.
SAME = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add",
    "__sub__": "sub", "__rsub__": "sub", "__isub__": "sub", "rsub": "sub", "subtract": "sub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul",
    "__truediv__": "div", "__rtruediv__": "div", "__itruediv__": "div", "__div__": "div", "__rdiv__": "div",
    "__idiv__": "div", "divide": "div", "true_divide": "div",
    "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__ifloordiv__": "floor_divide",
    "__mod__": "remainder", "__rmod__": "remainder", "__imod__": "remainder",
    "__pow__": "pow", "__rpow__": "pow", "__ipow__": "pow",
    "__matmul__": "matmul", "__rmatmul__": "matmul", "__imatmul__": "matmul",
    "__and__": "bitwise_and", "__rand__": "bitwise_and", "__iand__": "bitwise_and",
    "__or__": "bitwise_or", "__ror__": "bitwise_or", "__ior__": "bitwise_or",
    "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__ixor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift", "__rlshift__": "bitwise_left_shift", "__ilshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift", "__rrshift__": "bitwise_right_shift", "__irshift__": "bitwise_right_shift",
    "__invert__": "bitwise_not", "__neg__": "neg", "negative": "neg", "__pos__": "positive", "__abs__": "abs",
    "absolute": "abs", "__eq__": "eq", "__ne__": "ne", "not_equal": "ne", "__lt__": "lt", "less": "lt",
    "__le__": "le", "less_equal": "le", "__gt__": "gt", "greater": "gt", "__ge__": "ge", "greater_equal": "ge",
    "__getitem__": "getitem", "__setitem__": "setitem", "concat": "cat", "concatenate": "cat", "clip": "clamp",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "arccos": "acos", "arcsin": "asin",
    "arctan": "atan", "arctan2": "atan2", "arccosh": "acosh", "arcsinh": "asinh", "arctanh": "atanh", "fix": "trunc",
    "ger": "outer", "row_stack": "vstack", "linalg.matmul": "matmul", "linalg.inv": "inverse", "linalg.det": "det",
    "linalg.slogdet": "slogdet", "linalg.matrix_power": "matrix_power", "special.expit": "sigmoid",
    "special.psi": "digamma", "special.gammaln": "lgamma", "special.multigammaln": "mvlgamma",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool1d_with_indices": "max_pool1d", "max_pool3d_with_indices": "max_pool3d",
    "adaptive_max_pool1d_with_indices": "adaptive_max_pool1d",
    "adaptive_max_pool2d_with_indices": "adaptive_max_pool2d",
    "adaptive_max_pool3d_with_indices": "adaptive_max_pool3d",
    "fractional_max_pool2d_with_indices": "fractional_max_pool2d",
    "fractional_max_pool3d_with_indices": "fractional_max_pool3d",
}  # fmt: skip

REFLECTED = {
    "__rsub__", "rsub", "__rtruediv__", "__rdiv__", "__rfloordiv__", "__rmod__", "__rpow__", "__rmatmul__",
    "__rlshift__", "__rrshift__",
}  # fmt: skip

# These overwrite a tensor with random numbers; ``torch.normal`` and ``torch.bernoulli`` take parameters instead.
FILLS = {"normal_", "bernoulli_"}

# Operands of these may be exchanged without a change of the result, so their edges share the label "operand".
COMMUTATIVE = {
    "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "hypot", "logaddexp", "logaddexp2",
}  # fmt: skip

# Draw random numbers when active; see ``is_random``. Fresh memory counts, since it holds anything.
RANDOM = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "feature_dropout", "native_dropout", "rrelu", "bernoulli", "bernoulli_", "multinomial", "normal", "normal_",
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "poisson", "binomial",
    "uniform_", "random_", "exponential_", "cauchy_", "geometric_", "log_normal_", "gumbel_softmax",
    "fractional_max_pool2d", "fractional_max_pool3d", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
    "kaiming_normal_", "trunc_normal_", "orthogonal_", "sparse_", "empty", "empty_like", "empty_strided",
    "empty_permuted", "new_empty", "new_empty_strided",
}  # fmt: skip

# Draw random numbers only with a dropout probability above zero: the names of that argument and of the flag.
RANDOM_WITH = {
    "scaled_dot_product_attention": ("dropout_p", None),
    "multi_head_attention_forward": ("dropout_p", "training"),
    **{name: ("dropout", "train") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}

# Only move, select or reinterpret elements: every platform must return the same bits.
DATA_MOVEMENT = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "T", "mT", "getitem", "setitem", "cat", "stack",
    "chunk", "split", "unbind", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "roll", "contiguous",
    "clone", "detach", "pad", "unfold", "Tensor.unfold", "movedim", "flip", "tile", "view_as", "reshape_as",
    "unflatten", "narrow", "select", "index_select", "gather", "masked_fill", "where", "data", "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle", "rot90", "hstack", "vstack", "split_with_sizes", "tensor_split", "embedding",
}  # fmt: skip

# Sums of products or of terms, whose error grows with the length of the sum.
SUM_OF_PRODUCTS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul",
    "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum", "bilinear", "sum", "mean", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "cumsum", "inner", "outer",
    "tensordot",
}  # fmt: skip

# Calls that only ask or set an attribute of a tensor; some return a tensor.
QUERIES = {
    "requires_grad_", "retain_grad", "is_nested", "grad", "_base", "__hash__", "is_leaf", "_use_count", "shape", "size",
    "dim", "ndim", "device", "dtype", "layout", "numel", "stride", "requires_grad", "is_floating_point", "is_cuda",
    "is_contiguous", "is_complex", "is_sparse", "is_quantized", "is_meta", "__len__", "element_size", "storage_offset",
}  # fmt: skip

# In-place spellings that change the form of one tensor object and write into no memory.
FORM_ONLY = {
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "detach_", "as_strided_", "resize_",
    "resize_as_", "set_", "rename_", "requires_grad_",
}  # fmt: skip

# Written without being declared as written: (arguments, the argument that switches it on, its default).
HIDDEN_WRITES = {
    "batch_norm": (("running_mean", "running_var"), "training", False),
    "native_batch_norm": (("running_mean", "running_var"), "training", False),
    "instance_norm": (("running_mean", "running_var"), "use_input_stats", True),
    "embedding": (("weight",), "max_norm", None),
    "embedding_bag": (("weight",), "max_norm", None),
}

# Parameters where the lambdas that PyTorch keeps for its own tests differ from the real order (native_functions.yaml).
PARAMETERS = {
    "torch.Tensor.where": "input condition other",
    "torch.where": "condition input other",
    "torch.max": "input dim keepdim",
    "torch.Tensor.max": "input dim keepdim",
    "torch.min": "input dim keepdim",
    "torch.Tensor.min": "input dim keepdim",
    "torch.polygamma": "n input",
    "torch.special.polygamma": "n input",
    "torch.Tensor.polygamma_": "input n",
    "torch.Tensor.polygamma": "input n",
    "torch.bernoulli": "input p",
    "torch.Tensor.bernoulli": "input p",
    "torch.Tensor.bernoulli_": "input p",
    "torch.Tensor.normal_": "input mean std",
    "torch.Tensor.put_": "input index source accumulate",
    "torch.Tensor.repeat_interleave": "input repeats dim",
    "torch.repeat_interleave": "input repeats dim",
    "torch.xlogy": "input other",
    "torch.Tensor.xlogy": "input other",
    "torch.Tensor.xlogy_": "input other",
    "torch.isin": "elements test_elements",
    "torch.polar": "abs angle",
    "torch.functional.lu": "input pivot get_infos",
    "torch.embedding": "weight input padding_idx scale_grad_by_freq sparse",
    "torch.embedding_bag": "weight input offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset "
    "padding_idx",
    "torch.instance_norm": "input weight bias running_mean running_var use_input_stats momentum eps cudnn_enabled",
    "torch.binary_cross_entropy_with_logits": "input target weight pos_weight reduction",
    "torch._native_batch_norm_legit": "input weight bias running_mean running_var training momentum eps",
    "torch.fused_moving_avg_obs_fake_quant": "input observer_on fake_quant_on running_min running_max scale zero_point "
    "averaging_const quant_min quant_max ch_axis per_row_fake_quant symmetric_quant",
    "torch.Tensor.__getitem__": "input indices",
    "torch.Tensor.__setitem__": "input indices value",
    "torch.Tensor.__rpow__": "exponent input",
}

# Arguments with another name where a tensor is given: ``x.max(1)`` and ``x.max(y)``.
IF_TENSOR = {("max", "dim"): "other", ("min", "dim"): "other", ("to", "dtype"): "other"}

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
STEPS = "input hx params has_biases num_layers dropout train bidirectional batch_first"
PACKED_STEPS = "input batch_sizes hx params has_biases num_layers dropout train bidirectional"

# Return memory as it is found. Runs and replays set it to zero, so that all of them see the same.
UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
