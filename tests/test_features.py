"""Features of tensors: each compared with NumPy on the same numbers; the JSON form of values and its inverse."""

import json
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sortlib.apis import Argument
from sortlib.features import (
    LEVELS,
    SKETCH_SIZE,
    CallRecord,
    Opaque,
    TensorFeatures,
    decode,
    encode,
    map_tensors,
    measure,
    plain,
)

NAN, INF = float("nan"), float("inf")


def random(*shape):
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


# ---- values ----


def test_statistics_of_a_small_tensor():
    x = random(20, 30)
    x[0] = 0
    features, values = measure(x), x.numpy().astype(np.float64).ravel()
    assert (features.dtype, features.shape, features.strides) == ("float32", (20, 30), (30, 1))
    assert (features.minimum, features.maximum) == (values.min(), values.max())
    assert features.mean == pytest.approx(values.mean(), rel=1e-12)
    assert features.std == pytest.approx(values.std(), rel=1e-12)
    assert features.zeros == pytest.approx(30 / 600)
    assert features.quantiles == pytest.approx(np.quantile(values[values != 0], LEVELS), rel=1e-12)
    assert (features.nan, features.posinf, features.neginf, features.integral) == (0, 0, 0, False)
    assert features.numel == 600


def test_nan_and_infinities_are_shares_and_the_rest_is_finite():
    x = torch.tensor([NAN, INF, INF, -INF, 0.0, 1.0, 2.0, 5.0, 3.0, 4.0])
    features = measure(x)
    assert (features.nan, features.posinf, features.neginf) == (0.1, 0.2, 0.1)
    assert (features.minimum, features.maximum, features.mean) == (0.0, 5.0, 2.5)
    assert features.zeros == pytest.approx(1 / 6)
    assert features.quantiles[1:] == pytest.approx(np.quantile([1, 2, 5, 3, 4], LEVELS)[1:])  # of non-zero elements
    assert (features.quantiles[0], features.quantiles[LEVELS.index(0.5)], features.quantiles[-1]) == (0.0, 3.0, 5.0)


def test_a_tensor_without_finite_values_has_no_range():
    features = measure(torch.tensor([NAN, INF]))
    assert (features.nan, features.posinf, features.minimum, features.maximum, features.mean) == (
        0.5,
        0.5,
        None,
        None,
        None,
    )
    assert features.quantiles == ()


def test_minimum_and_maximum_read_every_element_of_a_large_tensor():
    x = torch.zeros(40 * SKETCH_SIZE)
    x[12345], x[-7], x[4] = 3.5, -2.0, NAN
    features = measure(x)
    assert (features.minimum, features.maximum) == (-2.0, 3.5)
    assert features.nan == 1 / x.numel()  # exact, not estimated from the sample
    assert not features.integral


def test_quantiles_of_a_large_tensor_are_those_of_its_distribution():
    x = random(1000, 1024)
    features = measure(x)
    exact = np.quantile(x.numpy(), LEVELS)
    # A quantile of n sampled values has the standard error sqrt(p(1-p)/n)/density; five of them.
    for level, got, right in zip(LEVELS[1:-1], features.quantiles[1:-1], exact[1:-1], strict=True):
        density = math.exp(-(right**2) / 2) / math.sqrt(2 * math.pi)
        assert abs(got - right) < 5 * math.sqrt(level * (1 - level) / SKETCH_SIZE) / density
    assert (features.quantiles[0], features.quantiles[-1]) == (x.min(), x.max())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
)
def test_integers(dtype):
    features = measure(torch.tensor([3, 0, 7, 7], dtype=dtype))
    assert (features.minimum, features.maximum, features.mean, features.zeros) == (0.0, 7.0, 4.25, 0.25)
    assert features.integral and features.dtype == str(dtype)[6:]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_other_floating_point_types(dtype):
    features = measure(torch.tensor([0.5, -1.5, 0.0, 1.0]).to(dtype))  # exact in all of them
    assert (features.minimum, features.maximum, features.mean, features.zeros) == (-1.5, 1.0, 0.0, 0.25)


def test_booleans_are_counted_exactly():
    mask = torch.zeros(30_011, dtype=torch.bool)
    mask[:7] = True
    features = measure(mask)
    assert round(features.mean * mask.numel()) == 7 and features.zeros == pytest.approx(1 - 7 / 30_011)
    assert (features.minimum, features.maximum) == (0.0, 1.0)
    assert (measure(torch.ones(3, dtype=torch.bool)).minimum, measure(torch.zeros(3, dtype=torch.bool)).maximum) == (
        1,
        0,
    )


def test_complex_numbers_count_real_and_imaginary_parts():
    x = torch.tensor([1 + 2j, 0 - 4j])
    for same in (x, x.conj().conj(), torch.view_as_complex(torch.view_as_real(x).clone())):
        features = measure(same)
        assert (features.minimum, features.maximum, features.mean, features.zeros) == (-4.0, 2.0, -0.25, 0.25)
    assert measure(x.conj()).maximum == 4.0
    assert measure(x.conj().imag).maximum == 4.0  # a negated view


def test_float64_near_its_limit_does_not_overflow():
    features = measure(torch.tensor([-1.7e308, 1.7e308, 1.0], dtype=torch.float64))
    assert (features.minimum, features.maximum) == (-1.7e308, 1.7e308)
    assert all(map(math.isfinite, features.quantiles)) and features.std is None


# ---- form ----


def test_layouts():
    x = random(2, 3, 4, 5)
    assert measure(x).layout == "contiguous"
    last = measure(x.contiguous(memory_format=torch.channels_last))
    assert (last.layout, last.strides) == ("channels_last", (60, 1, 15, 3))
    assert measure(x.permute(3, 2, 1, 0)).layout == "strided"
    for view in (x.contiguous(memory_format=torch.channels_last), x.permute(2, 0, 3, 1), x[:, ::2]):
        reference = view.contiguous().numpy().astype(np.float64)
        assert measure(view).mean == pytest.approx(reference.mean(), rel=1e-12, abs=1e-15)
        assert measure(view).quantiles == pytest.approx(np.quantile(reference, LEVELS), rel=1e-12)


def test_expanded_tensors_are_measured_without_being_copied():
    x = torch.tensor([[1.0], [0.0], [3.0]]).expand(3, 1 << 40)  # four terabytes if it were copied
    features = measure(x)
    assert (features.shape, features.strides) == ((3, 1 << 40), (1, 0))
    assert (features.minimum, features.maximum, features.mean) == (0.0, 3.0, pytest.approx(4 / 3))
    assert features.zeros == pytest.approx(1 / 3)


def test_scalar_and_zero_size():
    scalar, empty = measure(torch.tensor(2.5)), measure(torch.empty(0, 3))
    assert (scalar.shape, scalar.strides, scalar.minimum, scalar.mean, scalar.numel) == ((), (), 2.5, 2.5, 1)
    assert (empty.shape, empty.strides, empty.minimum, empty.quantiles, empty.numel) == ((0, 3), (3, 1), None, (), 0)
    assert empty.layout == "contiguous"


def test_tensors_without_readable_values_keep_their_form():
    sparse = torch.eye(3).to_sparse()
    quantised = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with FakeTensorMode():
        fake = torch.ones(2, 3)
    for x in (torch.empty(2, 3, device="meta"), fake, quantised):
        assert (measure(x).shape, measure(x).strides, measure(x).minimum) == ((2, 3), (3, 1), None)
    assert (measure(sparse).shape, measure(sparse).strides, measure(sparse).minimum) == ((3, 3), (), None)
    assert measure(nested).minimum is None and measure(nested).dtype == "float32"


def test_role_and_requires_grad_are_kept():
    features = measure(torch.nn.Parameter(torch.ones(2)), "parameter")
    assert (features.role, features.requires_grad, features.maximum) == ("parameter", True, 1.0)


def test_subclasses_do_not_see_the_measurement():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    assert measure(torch.ones(3).as_subclass(Loud)).minimum == 1.0


# ---- records ----


def test_records_describe_themselves_as_in_figures_8_and_9():
    features = TensorFeatures("float32", (1, 3, 4, 4), (48, 16, 4, 1), minimum=-2.0, maximum=2.5)
    record = CallRecord(
        "net",
        0,
        0,
        "conv2d",
        "torch.conv2d",
        "stem",
        "net.py:1",
        (
            Argument("input", features, "positional"),
            Argument("tensors", [features], "keyword"),
            Argument("stride", (2, 2), "keyword"),
        ),
        (features,),
    )
    assert record.describe().splitlines() == [
        "Tensor Parameters:",
        "- input:",
        "  - type = float32",
        "  - shape = [1, 3, 4, 4]",
        "  - value range = [-2, 2.5]",
        "- tensors.0:",
        "  - type = float32",
        "  - shape = [1, 3, 4, 4]",
        "  - value range = [-2, 2.5]",
        "Non-Tensor Parameters:",
        "- stride: type = tuple, values = (2, 2)",
    ]
    assert [path for path, _ in record.tensors()] == [("input",), ("tensors", 0)]


# ---- the JSON form ----

VALUES = [
    None,
    True,
    False,
    0,
    -3,
    2**70,
    1.5,
    -0.0,
    INF,
    -INF,
    1e-320,
    1.7e308,
    "text",
    "$float",
    "",
    2 + 3j,
    complex(NAN, -INF),
    (),
    (1, 2),
    [1, [2, (3,)]],
    {},
    {"a": 1, 2: (None,), None: [2.5]},
    slice(None),
    slice(1, None, -1),
    Ellipsis,
    (slice(0, 2), Ellipsis, None, [0, 1]),
    torch.float32,
    torch.bool,
    torch.float8_e4m3fn,
    torch.strided,
    torch.sparse_coo,
    torch.channels_last,
    torch.preserve_format,
    torch.device("cpu"),
    torch.device("cuda"),
    torch.device("meta"),
    measure(torch.tensor([0.0, 1.0, NAN])),
    measure(torch.tensor(True)),
    measure(torch.empty(0)),
    measure(random(3, 4), "buffer"),
    TensorFeatures("float32", (), (), minimum=0.0, maximum=0.0, mean=0.0, std=0.0),
    [measure(torch.ones(2)), {"deep": (measure(torch.zeros(1, dtype=torch.int8)),)}],
]


def same(one, other):
    """Equality that holds for NaN and tells True from 1, -0.0 from 0.0 and tuples from lists."""
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_decode_gives_back_what_encode_was_given(value):
    text = json.dumps(encode(value), allow_nan=False)  # strict JSON
    assert same(decode(json.loads(text)), value)


def test_nan_round_trip():
    assert math.isnan(decode(json.loads(json.dumps(encode(NAN)))))


def test_a_minimum_of_zero_is_kept():
    features = TensorFeatures("float32", (2,), (1,), minimum=0.0, maximum=6.0)
    assert encode(features)["$tensor"]["minimum"] == 0.0
    assert decode(encode(features)).minimum == 0.0


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (torch.Size([2, 3]), (2, 3)),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.float64(INF), INF),
        (torch.device("cuda:1"), torch.device("cuda")),  # a record is not bound to one of several devices
    ],
)
def test_values_that_change_their_type(value, becomes):
    assert same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), becomes)


def test_what_has_no_form_is_opaque():
    form = encode(object())
    assert isinstance(decode(form), Opaque) and encode(decode(form)) == form


def test_plain_keeps_no_object_and_copies_containers():
    shared, tensor = [1], torch.tensor(3)
    value = plain({"list": shared, "slice": slice(0, tensor), "tensor": tensor, "generator": torch.Generator()})
    shared.append(2)
    assert value["list"] == [1] and value["slice"] == slice(0, 3) and value["tensor"] is tensor
    assert value["generator"] == Opaque("torch._C.Generator")


@pytest.mark.parametrize(
    "form",
    [
        {"$torch": "load"},
        {"$torch": "os"},
        {"$torch": "nn.Linear"},
        {"$torch": "__class__"},
        {"$torch": 3},
        {"$device": "x"},
        {"$eval": "1"},
        {"$call": ["os.system", "true"]},
        {"a": 1, "b": 2},
        {},
        {"$float": "__import__('os')"},
        {"$complex": ["x", 1]},
    ],
)
def test_decode_runs_nothing_that_a_file_names(form):
    with pytest.raises((ValueError, TypeError)):
        decode(form)


def test_special_tags_reach_their_functions_only():
    special = {"$draw": lambda content: ("drawn", content)}
    assert decode({"$tuple": [{"$draw": [1]}, [{"$draw": 2}]]}, special) == (("drawn", [1]), [("drawn", 2)])
    assert encode([Opaque("x"), 1], lambda v: {"$mine": v.text} if isinstance(v, Opaque) else None) == [
        {"$mine": "x"},
        1,
    ]


def test_map_tensors_keeps_containers_and_gives_paths():
    x = torch.ones(2)
    paths = []
    result = map_tensors(
        {"a": [x, (x, 1)], "b": torch.max(x, 0)}, lambda path, t: paths.append(path) or 5, path=("arg",)
    )
    assert paths == [("arg", "a", 0), ("arg", "a", 1, 0), ("arg", "b", 0), ("arg", "b", 1)]
    assert result["a"] == [5, (5, 1)] and type(result["b"]) is torch.return_types.max
    packed = torch.nn.utils.rnn.pack_sequence([x])
    assert map_tensors(packed, lambda path, t: 0).data == 0
