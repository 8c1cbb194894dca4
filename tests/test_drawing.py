"""Drawing tensors from features: the same bits everywhere, and the distribution that was recorded."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from sortlib.drawing import SAMPLERS, digest, draw
from sortlib.features import TensorFeatures, contiguous_strides, decode, encode, measure


def gaussian(*shape):
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


EXAMPLES = {
    "float32": measure(gaussian(64, 33)),
    "float64": measure(gaussian(50).double()),
    "bfloat16": measure(gaussian(50).bfloat16()),
    "complex": measure(torch.complex(gaussian(20), gaussian(20))),
    "int64": measure(torch.arange(1000) - 7),
    "bool": measure(gaussian(100) > 1),
    "relu with nan": measure(torch.cat([gaussian(500).relu(), torch.tensor([float("nan"), float("inf")])])),
    "channels_last": measure(gaussian(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)),
    "expanded": measure(gaussian(3, 1).expand(3, 7)),
    "scalar": measure(torch.tensor(2.5)),
}


def digests():
    return {f"{name} {s}": digest([draw(f, "seed", s)]) for name, f in EXAMPLES.items() for s in SAMPLERS}


def test_equal_seeds_give_equal_bits_and_others_do_not():
    assert digests() == digests()
    one, other = draw(EXAMPLES["float32"], "a"), draw(EXAMPLES["float32"], "b")
    assert torch.equal(one, draw(EXAMPLES["float32"], "a")) and not torch.equal(one, other)


def test_a_process_with_other_kernels_draws_the_same_bits():
    code = (
        "import json, sys, torch; from sortlib.drawing import *; from sortlib.features import decode\n"
        "assert torch.backends.cpu.get_cpu_capability() == 'DEFAULT'; torch.set_num_threads(1)\n"
        "given = json.load(sys.stdin)\n"
        "made = {f'{n} {s}': digest([draw(decode(f), 'seed', s)]) for n, f in given.items() for s in SAMPLERS}\n"
        "print(json.dumps(made))"
    )
    given = json.dumps({name: encode(features) for name, features in EXAMPLES.items()})
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], input=given, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == digests()


# Computed once, on x86-64 with NumPy 2.4.6: other machines and versions must draw the same bits.
KNOWN = {
    ("float32", "quantile"): "a540775e2be4ece0",
    ("float64", "quantile"): "832a32a3cc550aab",
    ("bfloat16", "quantile"): "59d18997b418d186",
    ("int64", "quantile"): "8ad7a93862aacb8f",
    ("complex64", "quantile"): "6cd33a315730ffe2",
    ("float32", "uniform"): "7ccd3a67af2f5a75",
    ("int32", "uniform"): "98b7171a03635b60",
    ("bool", "quantile"): "cb23ea3935e16fed",
}


@pytest.mark.parametrize("dtype, sampler", KNOWN)
def test_the_bits_are_those_of_every_other_machine(dtype, sampler):
    quantiles = tuple(k * abs(k) / 7 for k in range(-8, 9))
    features = TensorFeatures(dtype, (300, 401), (401, 1), minimum=-64 / 7, maximum=64 / 7, zeros=0.2, nan=0.01,
                              mean=0.3, quantiles=quantiles)  # fmt: skip
    assert digest([draw(features, "seed", sampler)]) == KNOWN[dtype, sampler]


def test_the_quantile_sampler_follows_the_recorded_distribution():
    n = 200_000
    recorded = measure(gaussian(n))
    drawn = draw(recorded, "seed").numpy()
    # Share of drawn values below each recorded quantile: binomial, five standard errors and the table's step.
    for level, quantile in zip((0.01, 0.1, 0.5, 0.9, 0.99), (2, 4, 8, 12, 14), strict=True):
        share = (drawn < recorded.quantiles[quantile]).mean()
        assert abs(share - level) < 5 * np.sqrt(level * (1 - level) / n) + 1 / (1 << 16)
    assert recorded.minimum <= drawn.min() and drawn.max() <= recorded.maximum
    assert abs(drawn.mean() - recorded.mean) < 5 * recorded.std / np.sqrt(n) + 0.01


def test_the_uniform_sampler_fills_the_recorded_range():
    n = 100_000
    drawn = draw(TensorFeatures("float32", (n,), (1,), minimum=-2.0, maximum=6.0), "seed", "uniform").numpy()
    assert drawn.min() >= -2 and drawn.max() <= 6
    assert abs(drawn.mean() - 2) < 5 * (8 / np.sqrt(12)) / np.sqrt(n)


def test_zeros_nan_and_infinities_keep_their_shares():
    n = 100_000
    x = gaussian(n).relu()
    x[:1000], x[1000:3000], x[3000:3500] = float("nan"), float("inf"), -float("inf")
    features = measure(x)
    drawn = draw(features, "seed")
    shares = {
        features.nan: drawn.isnan(),
        features.posinf: drawn.isposinf(),
        features.neginf: drawn.isneginf(),
        features.zeros * (1 - 0.035): drawn == 0,  # the share among the finite
    }
    for share, found in shares.items():
        # The special values are put in one after the other, so each may cover some of those before it.
        assert abs(found.float().mean() - share) < 5 * np.sqrt(share * (1 - share) / n) + 0.001
    assert draw(measure(torch.zeros(9)), "seed").count_nonzero() == 0


@pytest.mark.parametrize(
    "view",
    [
        gaussian(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        gaussian(3, 1).expand(3, 7),
        gaussian(1, 5).expand(4, 3, 5),
        gaussian(6, 4).t(),
        gaussian(6, 8)[::2, 1::3],
        gaussian(10).unfold(0, 4, 2),
        torch.tensor(1.0),
        torch.empty(0, 3),
        torch.empty(2, 0).expand(2, 0),
    ],
    ids=[
        "channels_last",
        "expanded",
        "expanded twice",
        "transposed",
        "sliced",
        "windows",
        "scalar",
        "empty",
        "empty wide",
    ],
)
def test_shape_and_strides_are_the_recorded_ones(view):
    features = measure(view)
    drawn = draw(features, "seed")
    assert (drawn.shape, drawn.dtype) == (view.shape, view.dtype)
    assert drawn.stride() == view.stride() or drawn.numel() == 0
    if features.layout == "channels_last":
        assert drawn.is_contiguous(memory_format=torch.channels_last)
    for dim, step in enumerate(view.stride()):
        if step == 0 and view.shape[dim] > 1:
            assert torch.equal(drawn.select(dim, 0), drawn.select(dim, 1))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_stay_in_range(dtype, sampler):
    x = torch.tensor([3, 5, 100, 7, 9], dtype=dtype)
    drawn = draw(TensorFeatures(**{**vars(measure(x)), "shape": (5000,), "strides": (1,)}), "seed", sampler)
    assert drawn.dtype == dtype and drawn.min() >= 3 and drawn.max() <= 100 and drawn.unique().numel() > 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_large_integers_do_not_overflow(sampler):
    limits = torch.iinfo(torch.int64)
    drawn = draw(measure(torch.tensor([limits.min, limits.max, 0, 5])), "seed", sampler)
    assert drawn.dtype == torch.int64
    assert (draw(measure(torch.full((100,), limits.max)), "seed", sampler) > limits.max - 2048).all()
    odd = 2**24 + 1  # no float32 has this value
    assert (draw(measure(torch.full((100,), odd)), "seed", sampler) == odd).all()


def test_whole_numbers_in_floating_point_stay_whole():
    drawn = draw(measure(torch.tensor([0.0, 3.0, 8.0, 1.0])), "seed")
    assert torch.equal(drawn, drawn.round()) and drawn.max() <= 8


@pytest.mark.parametrize(
    "mask",
    [
        gaussian(997) > 1.5,
        (gaussian(40, 40) > 0)[::2, 1::3],
        (gaussian(8, 1) > 0.5).expand(8, 9),
        gaussian(5, 7).t() > 0,
        torch.zeros(5, dtype=torch.bool),
        torch.ones(5, dtype=torch.bool),
        torch.tensor(True),
        torch.empty(0, dtype=torch.bool),
    ],
    ids=["plain", "sliced", "expanded", "transposed", "none", "all", "scalar", "empty"],
)
def test_booleans_keep_their_exact_count(mask):
    for seed in "ab":
        assert draw(measure(mask), seed).count_nonzero() == mask.count_nonzero()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"])
def test_other_dtypes(dtype):
    features = TensorFeatures(dtype, (100,), (1,), minimum=-1.0, maximum=2.0, quantiles=tuple(np.linspace(-1, 2, 17)))
    drawn = draw(features, "seed")
    assert str(drawn.dtype) == f"torch.{dtype}"
    again = measure(drawn)
    assert again.minimum >= -1 and again.maximum <= 2


def test_records_without_values_draw_zeros():
    for dtype in ("float32", "int64", "bool"):
        assert draw(TensorFeatures(dtype, (2, 3), contiguous_strides((2, 3))), "seed").count_nonzero() == 0


def test_digest_tells_dtype_shape_and_bits():
    x = gaussian(2, 3)
    others = [x.view(3, 2), x.double(), x.view(torch.int32), -x, x + 1]
    assert len({digest([t]) for t in [x, *others]}) == 6
    assert digest([x]) == digest([x.t().contiguous().t()]) == digest([x.clone()])
    assert digest([torch.tensor(0.0)]) != digest([torch.tensor(-0.0)])
    assert digest([x.bfloat16(), x > 0, torch.empty(0), torch.tensor(1j)])
    assert decode(encode(EXAMPLES["float32"])) == EXAMPLES["float32"]
