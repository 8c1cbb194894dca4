"""Identity of APIs: binding and its inverse, what may be resolved, and the tables, proven by executing calls."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from sortlib import api_tables, apis
from sortlib.errors import SortError
from sortlib.features import map_tensors


def numbers(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.25


X, Y, IMAGE, MASK = numbers(2, 6), numbers(2, 6, seed=1), numbers(1, 4, 6, 6), numbers(2, 6) > 0.7
INDEX, FLAT, KERNEL = torch.tensor([1, 0]), numbers(6, seed=2), numbers(2, 2, 3, 3)
CONV, ATTENTION = nn.Conv2d(4, 2, 3, stride=2), nn.MultiheadAttention(6, 2).eval()
LSTM, GRU = nn.LSTM(6, 3, bidirectional=True), nn.GRU(6, 3)

CALLS = {
    "add": lambda: X + Y,
    "add scalar": lambda: 1 + X,
    "add alpha": lambda: torch.add(X, Y, alpha=2),
    "sub": lambda: X - 1,
    "rsub": lambda: 1 - X,
    "torch.rsub": lambda: torch.rsub(X, Y),
    "torch.rsub by keyword": lambda: torch.rsub(X, other=Y, alpha=2),
    "torch.rsub all keywords": lambda: torch.rsub(input=X, other=Y),
    "rdiv": lambda: 2 / X,
    "rpow": lambda: 2**X,
    "rfloordiv": lambda: 2 // X,
    "rmod": lambda: 2 % X,
    "rmatmul": lambda: X.__rmatmul__(Y.t()),
    "matmul": lambda: X @ Y.t(),
    "rlshift": lambda: INDEX.__rlshift__(3),
    "compare": lambda: X < 1,
    "invert": lambda: ~MASK,
    "and": lambda: MASK & MASK,
    "floor": lambda: X.div(Y, rounding_mode="floor"),
    "view": lambda: X.view(3, -1),
    "view tuple": lambda: X.view((3, 4)),
    "view dtype": lambda: X.view(torch.int32),
    "permute": lambda: IMAGE.permute(0, 2, 1, 3),
    "permute tuple": lambda: IMAGE.permute((0, 2, 1, 3)),
    "reshape": lambda: X.reshape(4, 3),
    "expand": lambda: X.expand(3, 2, 6),
    "repeat": lambda: X.repeat(2, 1),
    "flip": lambda: X.flip(0, 1),
    "unflatten": lambda: X.unflatten(1, (2, 3)),
    "flatten": lambda: torch.flatten(IMAGE, 1),
    "transpose": lambda: X.transpose(0, 1),
    "T": lambda: X.T,
    "squeeze": lambda: X[None].squeeze(0),
    "to dtype": lambda: X.to(torch.float64),
    "to device dtype": lambda: X.to("cpu", torch.float16),
    "to other": lambda: X.to(INDEX),
    "getitem": lambda: X[0],
    "getitem slices": lambda: IMAGE[..., 1:3, None],
    "getitem mask": lambda: X[MASK],
    "getitem list": lambda: X[:, [0, 2]],
    "getitem tensors": lambda: X[INDEX, INDEX],
    "cat": lambda: torch.cat([X, Y], 1),
    "cat keyword": lambda: torch.cat(tensors=(X, Y), dim=0),
    "stack": lambda: torch.stack((X, Y)),
    "einsum": lambda: torch.einsum("ij,kj->ik", X, Y),
    "einsum list": lambda: torch.einsum("ij,kj->ik", [X, Y]),
    "meshgrid": lambda: torch.meshgrid(FLAT, FLAT, indexing="ij"),
    "broadcast": lambda: torch.broadcast_tensors(X, FLAT),
    "split": lambda: X.split(3, dim=1),
    "split sizes": lambda: torch.split(X, [2, 4], 1),
    "chunk": lambda: X.chunk(2, 1),
    "unbind": lambda: X.unbind(),
    "topk": lambda: X.topk(2),
    "max": lambda: X.max(),
    "max dim": lambda: X.max(1, True),
    "max other": lambda: torch.max(X, Y),
    "sum": lambda: X.sum(1, True),
    "mean": lambda: X.mean([0, 1], keepdim=True),
    "std": lambda: X.std(0, False),
    "argmax": lambda: X.argmax(-1),
    "amax": lambda: X.amax(1),
    "norm": lambda: torch.norm(X),
    "linalg norm": lambda: torch.linalg.norm(X, dim=1),
    "where": lambda: torch.where(MASK, X, Y),
    "where method": lambda: X.where(MASK, Y),
    "where scalar": lambda: torch.where(MASK, X, 0.0),
    "masked_fill": lambda: X.masked_fill(MASK, -float("inf")),
    "gather": lambda: X.gather(1, INDEX[:, None]),
    "scatter": lambda: X.scatter(1, INDEX[:, None], 0.0),
    "clamp": lambda: X.clamp(min=0.5),
    "clip": lambda: torch.clip(X, 0.3, 0.9),
    "relu": lambda: F.relu(X - 1),
    "gelu": lambda: F.gelu(X, approximate="tanh"),
    "softmax": lambda: F.softmax(X, -1),
    "softmax dtype": lambda: torch.softmax(X, 1, dtype=torch.float64),
    "linear": lambda: F.linear(X, Y, None),
    "conv2d": lambda: F.conv2d(IMAGE, KERNEL, padding="same", groups=2),
    "conv module": lambda: CONV(IMAGE),
    "max_pool2d": lambda: F.max_pool2d(IMAGE, 2),
    "max_pool2d indices": lambda: F.max_pool2d(IMAGE, 2, return_indices=True),
    "adaptive": lambda: F.adaptive_avg_pool2d(IMAGE, (1, None)),
    "batch_norm": lambda: F.batch_norm(X, FLAT, FLAT, FLAT, None, False, 0.1, 1e-3),
    "layer_norm": lambda: F.layer_norm(X, (6,), FLAT),
    "group_norm": lambda: F.group_norm(IMAGE, 2),
    "embedding": lambda: F.embedding(INDEX, X),
    "one_hot": lambda: F.one_hot(INDEX, 4),
    "interpolate": lambda: F.interpolate(IMAGE, scale_factor=2.0, mode="bilinear", align_corners=False),
    "pad": lambda: F.pad(X, (1, 2), value=3.0),
    "dropout": lambda: F.dropout(X, 0.5, training=False),
    "sdpa": lambda: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, None, 0.0, True),
    "attention": lambda: ATTENTION(X[None], X[None], X[None]),
    "lstm": lambda: LSTM(X[None]),
    "gru": lambda: GRU(X[None]),
    "packed": lambda: LSTM(nn.utils.rnn.pack_sequence([X, Y[:1]])),
    "cross_entropy": lambda: F.cross_entropy(X, INDEX),
    "zeros": lambda: torch.zeros(2, 3, dtype=torch.int64),
    "arange": lambda: torch.arange(1, 7, 2),
    "full": lambda: torch.full((2,), 3.0),
    "tensor": lambda: torch.tensor([[1.0, 2.0]]),
    "new_zeros": lambda: X.new_zeros(2, 3),
    "zeros_like": lambda: torch.zeros_like(X, dtype=torch.bool),
    "complex": lambda: torch.fft.fft(X, norm="ortho"),
    "cdist": lambda: torch.cdist(X, Y),
    "tensordot": lambda: torch.tensordot(X, Y, ([1], [1])),
    "unfold": lambda: F.unfold(IMAGE, 2),
    "windows": lambda: X.unfold(1, 2, 2),
    "aten": lambda: torch.ops.aten.relu.default(X),
    "aten packet": lambda: torch.ops.aten.add(X, Y, alpha=2),
    "aten self": lambda: torch.ops.aten.neg(self=X),
    "foreach": lambda: torch._foreach_add([X, Y], 1.0),
    "pixel_shuffle": lambda: F.pixel_shuffle(IMAGE, 2),
    "channels_last": lambda: IMAGE.contiguous(memory_format=torch.channels_last),
    "roll": lambda: torch.roll(X, (1, 2), (0, 1)),
    "isfinite": lambda: torch.isfinite(X),
    "polygamma": lambda: torch.polygamma(1, X),
    "lerp": lambda: torch.lerp(X, Y, 0.25),
    "addmm": lambda: torch.addmm(X[:, :2], X, Y.t(), beta=0.5),
    "pow": lambda: X.pow(2.5),
    "triu": lambda: X.triu(1),
    "movedim": lambda: IMAGE.movedim(1, -1),
    "sort": lambda: X.sort(-1, descending=True),
    "cumsum": lambda: X.cumsum(0),
    "repeat_interleave": lambda: X.repeat_interleave(2, 1),
    "logical_or": lambda: torch.logical_or(MASK, MASK),
}


class Watch(TorchFunctionMode):
    """Keeps every call that returned tensors, with its result."""

    def __enter__(self):
        self.calls = []
        return super().__enter__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if tensors(result):
            self.calls.append((func, args, kwargs or {}, result))
        return result


def tensors(value):
    found = []
    map_tensors(value, lambda path, tensor: found.append(tensor))
    return found


def same_bits(one, other):
    one, other = tensors(one), tensors(other)
    return len(one) == len(other) > 0 and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_bound_call_can_be_repeated_by_its_recorded_name(call):
    with torch.no_grad(), Watch() as watch:
        call()
    assert watch.calls
    with torch.no_grad():
        for func, args, kwargs, result in watch.calls:
            api = apis.identify(func)
            bound = apis.bind(api, args, kwargs)
            again, named = apis.unbind(bound)
            assert same_bits(apis.resolve(api.target)(*again, **named), result)
            assert len({argument.name for argument in bound}) == len(bound)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: X.view(3, -1), {"input": X, "shape": (3, -1)}),
        (lambda: IMAGE.permute(0, 2, 1, 3), {"input": IMAGE, "dim": (0, 2, 1, 3)}),
        (lambda: X.sum(1, True), {"input": X, "dim": 1, "keepdim": True}),
        (lambda: X.std(0, False), {"input": X, "dim": 0, "unbiased": False}),
        (lambda: X.max(1), {"input": X, "dim": 1}),
        (lambda: X.max(Y), {"input": X, "other": Y}),
        (lambda: X.to(Y), {"input": X, "other": Y}),
        (lambda: 2 / X, {"input": 2, "other": X}),
        (lambda: 2**X, {"exponent": X, "input": 2}),
        (lambda: torch.rsub(X, other=Y), {"other": X, "input": Y}),
        (
            lambda: F.scaled_dot_product_attention(X, Y, X, None, 0.0, True),
            {"query": X, "key": Y, "value": X, "attn_mask": None, "dropout_p": 0.0, "is_causal": True},
        ),
        (lambda: X.new_zeros(2, 3), {"input": X, "args": (2, 3)}),
        (lambda: torch.einsum("ij,kj->ik", X, Y), {"equation": "ij,kj->ik", "operands": (X, Y)}),
    ],
)
def test_arguments_have_the_names_of_the_documentation(call, names):
    with Watch() as watch:
        call()
    func, args, kwargs, _ = watch.calls[0]
    bound = {argument.name: argument.value for argument in apis.bind(apis.identify(func), args, kwargs)}
    assert bound.keys() == names.keys()
    for name, value in names.items():
        assert bound[name] is value or bound[name] == value


def test_bound_names_agree_with_the_operator_schemas():
    """A tensor argument of a built-in has a name, and no two names stand in each other's place."""
    wrong = []
    for func in apis.overridable():
        name, api = getattr(func, "__name__", ""), apis.identify(func)
        if inspect.isfunction(func) or api.query or api.parameters[-1] == "args" or name in api_tables.RECURRENT:
            continue
        if api.target == "torch.Tensor.where" or {name, name.rstrip("_")} & {"rsub", "polygamma"}:
            continue  # the schema's first argument is not the first of the call
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            names = ["input" if a.name == "self" else a.name for a in schema.arguments if not a.kwarg_only]
            shared = [n for n in api.parameters if n in names]
            lacking = [
                n
                for n, a in zip(names[len(api.parameters) :], schema.arguments[len(api.parameters) :], strict=False)
                if "Tensor" in str(a.type) and not (a.alias_info and a.alias_info.is_write)
            ]
            if shared != [n for n in names if n in api.parameters] or lacking:
                wrong.append((api.target, api.parameters, names))
    assert wrong == []


# ---- resolve ----


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "torch.save",
        "torch.hub.load",
        "torch.jit.load",
        "torch.package.PackageImporter",
        "os.system",
        "torch.os.system",
        "torch.sys.exit",
        "builtins.eval",
        "eval",
        "torch.from_file",
        "torch.Tensor.from_file",
        "torch.ops.aten.from_file",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save",
        "torch.ops.aten.save.default",
        "torch.ops.load_library",
        "torch.classes.load_library",
        "torch.utils.cpp_extension.load",
        "torch.compile",
        "torch.jit.script",
        "torch.nn.Linear",
        "torch.Tensor",
        "torch.Tensor.apply_",
        "torch.Tensor.map_",
        "torch.Tensor.register_hook",
        "torch.Tensor.__reduce_ex__",
        "torch.Tensor.__setstate__",
        "torch.Tensor.__class__",
        "torch.Tensor.__subclasses__",
        "torch.Tensor.__init__",
        "torch.Tensor.split.__globals__",
        "torch.__dict__",
        "torch.Tensor.share_memory_",
        "torch.distributed.distributed_c10d.all_reduce",
        "torch._C._set_grad_enabled",
        "torch.nn.functional.torch.load",
        "torch.nonsense",
        "torch",
        "",
        ".",
        "torch.",
        "torch..load",
    ],
)
def test_resolve_refuses_what_is_no_operator(target):
    with pytest.raises(SortError, match="is no operator of torch"):
        apis.resolve(target)


def test_resolve_finds_every_operator_that_modes_report():
    special = {"__array__", "__array_wrap__", "__reduce_ex__", "__setstate__"}
    lost = []
    for func in apis.overridable():
        target = apis.identify(func).target
        last = target.split(".")[-1]
        converts = last.startswith("__") and apis.identify(func).name.startswith("__")  # __float__, __repr__ and so on
        if converts or special & set(target.split(".")) or "distributed" in target or resolve_name(func) is None:
            continue
        try:
            assert apis.resolve(target) == func
        except SortError:
            lost.append(last)
    refused = {
        "apply_",
        "map_",
        "map2_",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "share_memory_",
        "storage",
        "untyped_storage",
        "backward",
        "module_load",
        "__get__",
        "autocast",
    }
    assert set(lost) <= refused and len(lost) <= len(refused)


# ---- tables ----


def candidates():
    """Arguments for calls of unknown arity; the first that two spellings accept is used."""
    square, integers = numbers(3, 3) + torch.eye(3), torch.tensor([[3, 5], [2, 7]])
    yield from (
        (X, Y),
        (X,),
        (X, 2.0),
        (integers, integers + 1),
        (integers,),
        (square,),
        (square, 2),
        (square, FLAT[:3]),
    )
    yield from (
        (IMAGE, 2),
        (IMAGE, 0, 1),
        (IMAGE[0], 2),
        (IMAGE[None], 2),
        ([X, Y],),
        (MASK, MASK),
        (X.acos(),),
        (X + 1, 2),
    )
    yield from ((X, 0.3, 0.9), (FLAT, FLAT), (IMAGE[0], 2, 3), (X, 0, 1), (IMAGE[None], 2, 2))


def find(name):
    homes = (torch.Tensor,) if name.startswith("__") else (torch, torch.Tensor, F, torch.linalg, torch.special)
    for home in homes:
        function = getattr(home, name.rpartition(".")[2], None)
        wanted = {"linalg": torch.linalg, "special": torch.special}.get(name.rpartition(".")[0], home)
        if function is not None and home is wanted and not inspect.ismodule(function):
            return function
    return None


def run(function, args):
    try:
        torch.manual_seed(0)  # fractional pooling draws its windows
        return function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError):
        return None


REFLECTED = api_tables.REFLECTED
ALIASES = sorted(name for name in api_tables.SAME if find(name) and "setitem" not in name and "getitem" not in name)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_computes_what_its_canonical_name_computes(alias):
    function, canonical = find(alias), find(api_tables.SAME[alias])
    compared = 0
    for args in candidates():
        swapped = (*args[1::-1], *args[2:]) if alias in REFLECTED else args
        result = run(function, args)
        expected = run(canonical, swapped)
        if expected is None and alias in REFLECTED and len(args) == 2 and not isinstance(args[1], torch.Tensor):
            expected = run(canonical, (torch.tensor(args[1]), args[0]))
        if not tensors(result) or not tensors(expected):
            continue
        compared += 1
        close = {} if alias in ("__rtruediv__", "__rdiv__") else {"rtol": 0, "atol": 0}  # x.reciprocal() * 2 for 2 / x
        torch.testing.assert_close(tensors(result)[0], tensors(expected)[0], equal_nan=True, **close)
    assert compared, f"no arguments suit both {alias} and {api_tables.SAME[alias]}"


@pytest.mark.parametrize("name", sorted(api_tables.COMMUTATIVE))
def test_operands_of_a_commutative_api_may_be_exchanged(name):
    kinds = [(X, Y), (X - 0.5, Y - 0.5), (torch.tensor([3, 5]), torch.tensor([6, 1])), (MASK, ~MASK)]
    compared = 0
    for one, other in kinds:
        there, back = run(getattr(torch, name), (one, other)), run(getattr(torch, name), (other, one))
        if there is not None:
            compared += 1
            assert torch.equal(there, back)
    assert compared


def test_non_commutative_operators_are_not_listed():
    for name in ("sub", "div", "pow", "remainder", "atan2", "lt", "le", "matmul", "bitwise_left_shift", "floor_divide"):
        assert name not in api_tables.COMMUTATIVE
        one, other = (torch.tensor([[2, 3], [5, 7]]), torch.tensor([[1, 3], [2, 2]]))
        there, back = getattr(torch, name)(one, other), getattr(torch, name)(other, one)
        assert not torch.equal(there, back)


MOVES = {
    "flatten": (IMAGE,),
    "view": (X, 3, 4),
    "reshape": (X, (3, 4)),
    "permute": (X, (1, 0)),
    "transpose": (X, 0, 1),
    "t": (X,),
    "cat": ([X, Y],),
    "stack": ([X, Y],),
    "chunk": (X, 2),
    "split": (X, 1),
    "unbind": (X,),
    "squeeze": (X[None],),
    "unsqueeze": (X, 0),
    "expand": (X, 3, 2, 6),
    "expand_as": (FLAT, X),
    "repeat": (X, 2, 1),
    "roll": (X, 1),
    "contiguous": (X.t(),),
    "clone": (X,),
    "detach": (X,),
    "pad": (X, (1, 1)),
    "unfold": (IMAGE, 2),
    "movedim": (X, 0, 1),
    "flip": (X, (0,)),
    "tile": (X, (2,)),
    "view_as": (X, Y),
    "reshape_as": (X, Y),
    "unflatten": (X, 1, (2, 3)),
    "narrow": (X, 1, 0, 2),
    "select": (X, 0, 1),
    "index_select": (X, 0, INDEX),
    "gather": (X, 1, INDEX[:, None]),
    "masked_fill": (X, MASK, 0.0),
    "where": (MASK, X, Y),
    "pixel_shuffle": (IMAGE, 2),
    "pixel_unshuffle": (IMAGE, 2),
    "channel_shuffle": (IMAGE, 2),
    "rot90": (X,),
    "hstack": ([X, Y],),
    "vstack": ([X, Y],),
    "split_with_sizes": (X, [1, 1]),
    "tensor_split": (X, 2),
    "embedding": (INDEX, X),
}
OTHERWISE = {
    "T": lambda: X.T,
    "mT": lambda: X.mT,
    "data": lambda: X.data,
    "getitem": lambda: X[1],
    "Tensor.unfold": lambda: X.unfold(1, 2, 1),
    "setitem": lambda: X.clone().__setitem__(0, Y[0]),
}


@pytest.mark.parametrize("name", sorted(api_tables.DATA_MOVEMENT))
def test_data_movement_makes_no_new_values(name):
    homes = (F, torch, torch.Tensor)
    function = next((getattr(h, name) for h in homes if hasattr(h, name)), None)
    result = OTHERWISE[name]() if name in OTHERWISE else function(*MOVES[name])
    known = set(torch.cat([t.flatten() for t in (X, Y, IMAGE, FLAT)]).tolist()) | {0.0}
    assert all(set(tensor.flatten().tolist()) <= known for tensor in tensors(result)) and (
        tensors(result) or name == "setitem"
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: F.dropout(X, 0.5, training=True), True),
        (lambda: F.dropout(X, 0.5, False), False),
        (lambda: torch.dropout(X, 0.5, True), True),
        (lambda: torch.dropout(X, 0.5, False), False),
        (lambda: F.rrelu(X), False),
        (lambda: F.rrelu(X, training=True), True),
        (lambda: torch.rrelu(X - 1), False),
        (lambda: X.clone().random_(9), True),
        (lambda: X.clone().uniform_(), True),
        (lambda: X.clone().normal_(), True),
        (lambda: torch.bernoulli(MASK.float()), True),
        (lambda: X.clone().bernoulli_(0.5), True),
        (lambda: torch.randn(2), True),
        (lambda: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE), False),
        (lambda: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, dropout_p=0.1), True),
        (
            lambda: F.multi_head_attention_forward(
                X, X, X, 6, 1, numbers(18, 6), None, None, None, False, 0.1, numbers(6, 6), None
            ),
            True,
        ),
        (lambda: nn.LSTM(6, 3, 2, dropout=0.5).train()(X[None]), True),
        (lambda: nn.LSTM(6, 3, 2, dropout=0.5).eval()(X[None]), False),
        (lambda: torch.empty(2), True),
        (lambda: torch.zeros(2), False),
        (lambda: F.relu(X), False),
    ],
)
def test_random_calls_are_known(call, expected):
    with torch.no_grad(), Watch() as watch:
        call()
    func, args, kwargs, _ = watch.calls[-1]
    api = apis.identify(func)
    assert apis.is_random(api.name, apis.bind(api, args, kwargs)) is expected


def test_paper_names_are_display_names_of_the_15_apis():
    assert len(api_tables.PAPER_APIS) == 15
    assert [apis.paper_name(name) for name in ("add", "mul", "conv2d", "sub")] == [
        "__add__",
        "__mul__",
        "conv2d",
        "sub",
    ]


def test_edge_labels():
    assert apis.edge_label("add", ("other",)) == apis.edge_label("add", ("input",)) == "operand"
    assert apis.edge_label("sub", ("other",)) == "other"
    assert apis.edge_label("cat", ("tensors", 3), 1, several=True, alias=True) == "tensors[1]@alias"
