"""The device simdev: a faithful PrivateUse1 device, and faults that change one API each."""

import functools
import io
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sortlib as sl
from sortlib import simdev
from sortlib.api_tables import PAPER_APIS
from sortlib.errors import SortError
from sortlib.judging import Verdict
from sortlib.runner.evidence import same_bits
from sortlib.simdev import build
from sortlib.simdev.catalogue import FAULTS
from sortlib.simdev.record import CALLS
from sortlib.simdev.rounding import to_tf32

MISSING = build.missing()
built = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def device():
    """The device, built once."""
    return simdev.load()


@pytest.fixture(autouse=True)
def no_fault_stays():
    yield
    simdev.clear()


def in_a_fresh_process(test):
    """Run a test with gradients apart: autograd counts devices once, and other tests of this process came earlier."""

    @functools.wraps(test)
    def wrapped(**fixtures):
        if os.environ.get("SORTLIB_TEST_APART") == test.__name__:
            return test(**fixtures)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test.__name__}"]
        environment = {**os.environ, "SORTLIB_TEST_APART": test.__name__}
        made = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert made.returncode == 0 and "1 passed" in made.stdout, made.stdout + made.stderr

    return wrapped


def drawn(*shape, seed=0):
    rng = np.random.Generator(np.random.Philox(seed))
    return torch.from_numpy(rng.standard_normal(shape).astype("f4"))


def inputs_of(texts):
    scope = {"np": np, "rng": np.random.Generator(np.random.Philox(0))}
    return {name: torch.from_numpy(np.asarray(eval(text, scope))) for name, text in texts.items()}


def value(call, inputs, device):
    """What an expression gives on a device, as a CPU tensor with the strides that it had."""
    torch.manual_seed(5)
    with torch.no_grad():
        result = eval(call, {"torch": torch, "F": F, **{name: tensor.to(device) for name, tensor in inputs.items()}})
    assert result.device.type == device
    assert result.cpu().stride() == result.stride()
    return result.cpu()


def equal(a, b):
    return a.shape == b.shape and a.stride() == b.stride() and same_bits(a.numpy(), b.numpy())


# ---- the device ----


@built
def test_loaded_after_a_backward_pass_it_says_what_does_not_work():
    code = """
import warnings, torch
from sortlib import simdev
torch.ones(1, requires_grad=True).sum().backward()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    simdev.load()
assert ["call simdev.load() first" in str(w.message) for w in said] == [True], said
assert torch.ones(2, device="simdev").sum().item() == 2
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr


@built
def test_values_survive_the_way_to_the_device_and_back(device):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = (drawn(4, 5) * 3).to(dtype)
        there = tensor.to("simdev")
        assert (there.device, there.dtype) == (torch.device("simdev", 0), dtype)
        assert torch.equal(there.cpu(), tensor)
        there.zero_()
        assert tensor.any(), "the copy shares memory with the original"


@built
def test_views_share_memory_and_keep_their_strides(device):
    base = torch.arange(24.0, device="simdev").reshape(2, 3, 4)
    views = {
        base.permute(2, 0, 1): (1, 12, 4),
        base[:, 1:, ::2]: (12, 4, 2),
        base.select(2, 3): (12, 4),
        base.expand(5, 2, 3, 4): (0, 12, 4, 1),
    }
    for view, strides in views.items():
        assert view.stride() == strides
        assert view._base is not None and view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    base[:, 1:, ::2].mul_(-1)
    expected = torch.arange(24.0).reshape(2, 3, 4)
    expected[:, 1:, ::2].mul_(-1)
    assert torch.equal(base.cpu(), expected)
    version = base._version
    base.add_(1)
    assert base._version == version + 1


@built
def test_memory_formats_survive_operators(device):
    image = drawn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    weight = drawn(4, 3, 3, 3)
    there = image.to("simdev")
    assert there.is_contiguous(memory_format=torch.channels_last)
    for call in (
        F.relu,
        F.gelu,
        lambda x: F.max_pool2d(x, 2),
        lambda x: x + 1,
        lambda x: F.conv2d(x, weight.to(x.device)),
    ):
        assert call(there).stride() == call(image).stride()


@built
def test_writes_into_given_tensors(device):
    out = torch.empty(0, device="simdev")
    torch.add(torch.ones(3, device="simdev"), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    tensor = torch.arange(6.0, device="simdev")
    tensor.resize_(2, 2)
    assert tensor.tolist() == [[0, 1], [2, 3]]
    tensor.resize_(3, 3)
    assert tensor.shape == (3, 3) and tensor.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    other = torch.zeros(2, device="simdev")
    other.set_(tensor.untyped_storage(), 1, (2,), (2,))
    assert other.tolist() == [1, 3]
    tensor[tensor > 3] = -1
    assert tensor.flatten()[:6].tolist() == [0, 1, 2, 3, -1, -1]


@built
def test_tensors_of_two_devices_do_not_mix(device):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device.*simdev:0 and cpu"):
        torch.ones(3, device="simdev") + torch.ones(3)
    assert (torch.ones(3, device="simdev") * torch.tensor(2.0)).tolist() == [2, 2, 2]  # numbers may
    assert torch.ones(3, device="simdev")[torch.tensor([0, 2])].shape == (2,)  # so may positions
    with pytest.raises(RuntimeError, match="one device, number 0"):
        torch.ones(1, device="simdev:1")


@built
@in_a_fresh_process
def test_gradients_are_those_of_the_cpu(device):
    def gradients(where):
        torch.manual_seed(1)
        x, w = (t.to(where).requires_grad_() for t in (drawn(2, 3, 8, 8), drawn(4, 3, 3, 3, seed=1)))
        hidden = F.gelu(F.layer_norm(F.conv2d(x, w, padding=1), (8,)))
        out = F.linear(F.dropout(F.max_pool2d(hidden, 2).flatten(1), 0.5), drawn(5, 64, seed=2).to(where))
        F.softmax(out, 1)[:, 0].sum().backward()
        return x.grad, w.grad

    for ours, theirs in zip(gradients("simdev"), gradients("cpu"), strict=True):
        assert ours.device.type == "simdev"
        assert same_bits(ours.cpu().numpy(), theirs.numpy())


@built
def test_random_numbers_follow_the_seed_and_are_the_devices_own(device):
    def sample():
        x = torch.ones(50, device="simdev")
        return [
            torch.randn(3, device="simdev"),
            torch.rand(3, device="simdev"),
            F.dropout(x),
            torch.randperm(9, device="simdev"),
        ]

    torch.manual_seed(3)
    first = sample()
    torch.manual_seed(3)
    cpu_state = torch.get_rng_state()
    again = sample()
    assert torch.equal(torch.get_rng_state(), cpu_state), "the CPU's generator was used"
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(sample()[0], first[0])
    torch.manual_seed(3)
    assert torch.equal(torch.randn(3), first[0].cpu())  # the same algorithm as the CPU's
    state = torch.simdev.get_rng_state()
    expected = torch.rand(4, device="simdev")
    torch.simdev.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="simdev"), expected)
    own = torch.Generator("simdev").manual_seed(11)
    host = torch.Generator().manual_seed(11)
    assert torch.equal(torch.rand(4, device="simdev", generator=own).cpu(), torch.rand(4, generator=host))


@built
def test_saving_and_loading(device):
    tensor = drawn(3, 4).to("simdev").t()
    file = io.BytesIO()
    torch.save({"tensor": tensor}, file)
    file.seek(0)
    loaded = torch.load(file)["tensor"]
    assert loaded.device.type == "simdev" and loaded.stride() == tensor.stride() and torch.equal(loaded, tensor)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["tensor"].device.type == "cpu"


@built
def test_it_is_the_accelerator(device):
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("simdev")
    before = torch.accelerator.memory_allocated()
    held = torch.ones(1000, device="simdev")
    assert torch.accelerator.memory_allocated() - before == 4000
    del held
    assert torch.accelerator.memory_allocated() == before
    start, end = (torch.Event("simdev", enable_timing=True) for _ in range(2))
    start.record(), end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) >= 0


@built
def test_autocast(device):
    x, w = drawn(3, 4).to("simdev"), drawn(5, 4).to("simdev")
    with torch.autocast("simdev", torch.bfloat16):
        low = F.linear(x, w)
        assert low.dtype == torch.bfloat16
        assert F.mse_loss(low, low).dtype == torch.float32
        assert (x + x).dtype == torch.float32
    assert torch.equal(low, F.linear(x.bfloat16(), w.bfloat16()))


@built
def test_the_generated_methods(device):
    tensor = torch.ones(2)
    assert not tensor.is_simdev and tensor.simdev().is_simdev
    assert torch.nn.Linear(2, 2).simdev().weight.is_simdev
    assert torch.simdev.device_count() == 1 and torch.simdev.is_available()


@built
def test_a_clean_device_is_the_cpu_bit_for_bit(device):
    assert set(CALLS) == set(PAPER_APIS)
    for api, (call, texts) in CALLS.items():
        inputs = inputs_of(texts)
        assert equal(value(call, inputs, "cpu"), value(call, inputs, "simdev")), api
    for fault in FAULTS.values():  # special values, strides and modes
        inputs = inputs_of(fault.inputs)
        assert equal(value(fault.call, inputs, "cpu"), value(fault.call, inputs, "simdev")), fault.name


@built
def test_attention_takes_the_cpus_kernel(device):
    q = drawn(2, 4, 16, 8)
    there = F.scaled_dot_product_attention(*[q.to("simdev")] * 3).cpu()
    assert torch.equal(there, F.scaled_dot_product_attention(q, q, q))


# ---- faults ----

ENDS = {"crash", "timeout"}  # these end the process or never return


def test_the_catalogue():
    table = simdev.faults()
    assert len(table) == len(FAULTS) >= 30 and table["fault"].is_unique
    assert set(table["api"]) == set(PAPER_APIS)
    assert set(table["verdict"]) <= {str(verdict) for verdict in Verdict}
    assert {"suspect", "config", "nan", "crash", "timeout", "exception", "slow"} == set(table["verdict"])
    for fault in FAULTS.values():
        assert fault.name.startswith(f"{fault.api}-") and fault.what and fault.call


@built
@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if f.verdict not in ENDS | {"exception", "slow"}])
def test_a_fault_changes_its_api_and_no_other(device, name, one_thread):
    fault = FAULTS[name]
    inputs = inputs_of(fault.inputs)
    with simdev.fault(name) as injected:
        assert simdev.active() == (injected,)
        # A flaky kernel is wrong in one of ten calls.
        calls = [value(fault.call, inputs, "simdev") for _ in range(10 if "flaky" in name else 1)]
        expected = value(fault.call, inputs, "cpu")
        wrong = [call.dtype != expected.dtype or not equal(call, expected) for call in calls]
        assert sum(wrong) == 1
        for api, (call, texts) in CALLS.items():
            if api != fault.api:
                others = inputs_of(texts)
                assert equal(value(call, others, "cpu"), value(call, others, "simdev")), api
    assert equal(value(fault.call, inputs, "simdev"), expected), "the fault outlives its removal"


@built
def test_a_fault_is_met_on_every_way_to_the_api(device):
    x, y = torch.full((2, 3), 2.0, device="simdev"), torch.ones(2, 3, device="simdev")
    with simdev.fault("add", lambda clean, a, b, *, alpha=1: clean(a, b, alpha=alpha) + 10):
        out = torch.empty(2, 3, device="simdev")
        assert torch.add(x, y, out=out) is out
        results = [torch.add(x, y), x + y, 2 + y, x.add(y), x.clone().add_(y), torch.ops.aten.add(x, y), out]
        written = x.clone()
        written += y
        with torch.inference_mode():
            results.append(x + y)
        assert all(r.eq(13).all() for r in [*results, written])
        assert torch.add(x.cpu(), y.cpu()).eq(3).all(), "the CPU has no fault"
    with simdev.fault("linear", lambda clean, x, w, b=None: clean(x, w)):
        layer = torch.nn.Linear(3, 2).to("simdev")
        with torch.no_grad():
            layer.weight.zero_()
            assert layer(x).eq(0).all() and F.linear(x, layer.weight, layer.bias).eq(0).all()
        with torch.inference_mode():
            assert layer(x).eq(0).all()


@built
@in_a_fresh_process
def test_a_faulty_value_keeps_the_gradient_of_the_operator(device):
    x, w = drawn(4, 6), drawn(3, 6, seed=1)

    def run(where):
        a, b = (tensor.detach().to(where).requires_grad_() for tensor in (x, w))
        out = F.softmax(F.linear(a, b), 1)
        out[:, 0].sum().backward()
        return out.detach().cpu(), a.grad.cpu(), b.grad.cpu()

    expected = run("cpu")
    with simdev.fault("linear-last-term"), simdev.fault("matmul-last-term"):
        found = run("simdev")
    assert not torch.equal(found[0], expected[0])
    with simdev.fault("matmul-last-term"):  # which linear's parts must not meet
        assert all(torch.equal(a, b) for a, b in zip(run("simdev"), expected, strict=True))
    a, b = (x.detach().to(where).requires_grad_() for where in ("cpu", "simdev"))
    F.gelu(a).sum().backward()
    with simdev.fault("gelu", lambda clean, x, **named: clean(x, **named) + 1):  # no composite operator
        F.gelu(b).sum().backward()
    assert torch.equal(b.grad.cpu(), a.grad)


@built
def test_a_fault_of_an_inner_operator(device):
    q = drawn(1, 2, 5, 8).to("simdev")
    with simdev.fault("scaled_dot_product_attention", lambda clean, *args, **named: clean(*args, **named) * 2):
        wrong = F.scaled_dot_product_attention(q, q, q)
    assert torch.equal(wrong, F.scaled_dot_product_attention(q, q, q) * 2)


@built
def test_tf32_is_a_setting(device):
    # 1 + 2**-11 lies between two numbers of TensorFloat-32, which has 10 bits, and ties go to the even one.
    exact = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, -1.0, float("inf"), float("nan")])
    assert to_tf32(exact)[:4].tolist() == [1.0, 1 + 2**-9, -1.0, float("inf")] and to_tf32(exact)[4].isnan()
    x, w = drawn(4, 64), drawn(3, 64, seed=1)
    expected = F.linear(x, w)
    with simdev.fault("linear-tf32"):
        assert torch.backends.simdev.allow_tf32 is True
        assert torch.equal(F.linear(x.to("simdev"), w.to("simdev")).cpu(), F.linear(to_tf32(x), to_tf32(w)))
        torch.backends.simdev.allow_tf32 = False
        try:
            assert torch.equal(F.linear(x.to("simdev"), w.to("simdev")).cpu(), expected)
        finally:
            torch.backends.simdev.allow_tf32 = True


@built
def test_an_exception_and_a_delay(device):
    with simdev.fault("max_pool2d-not-implemented"), pytest.raises(NotImplementedError, match="max_pool2d is not"):
        F.max_pool2d(torch.ones(1, 1, 4, 4, device="simdev"), 2)
    x = torch.ones(3, device="simdev")
    with simdev.fault("gelu-slow"):
        assert torch.equal(F.gelu(x).cpu(), F.gelu(torch.ones(3)))


def test_mistakes_are_one_clear_line():
    with pytest.raises(SortError, match="no fault 'linear-bf61'; did you mean 'linear-bf16'"):
        simdev.fault("linear-bf61")
    with pytest.raises(SortError, match="'linear': a function is needed, not int"):
        simdev.fault("linear", 3)
    with pytest.raises(SortError, match="no variant 'linear-bf61' of simdev"):
        sl.run([], "cpu", "simdev:linear-bf61")


@built
def test_mistakes_with_faults(device):
    with pytest.raises(SortError, match="'linaer': no such API; valid: adaptive_avg_pool2d, add"):
        simdev.fault("linaer", lambda clean, *args: None)
    simdev.fault("relu-last-element")
    with pytest.raises(SortError, match="relu has the fault 'relu-last-element' already"):
        simdev.fault("relu-nan-swallowed")


# ---- as a platform ----


def test_a_machine_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    row = sl.platforms().set_index("platform").loc["simdev"]
    assert not row["available"] and "no C++ compiler (no-such-compiler)" in row["missing"]
    with pytest.raises(SortError, match="'simdev:linear-bf16' is not available: no C\\+\\+ compiler"):
        sl.run([], "cpu", "simdev:linear-bf16")
    with pytest.raises(SortError, match="simdev is not available: no C\\+\\+ compiler"):
        build.library()


@pytest.mark.skipif(sys.platform == "win32", reason="simdev is not built on Windows")
def test_a_failed_build_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "false")  # a command that fails at once
    monkeypatch.setattr(build, "missing", lambda: "")
    with pytest.raises(SortError, match="^simdev cannot be built: ") as caught:
        build.library()
    assert "\n" not in str(caught.value)


@built
def test_the_platform_is_listed(device):
    row = sl.platforms().set_index("platform").loc["simdev"]
    assert row["available"] and row["missing"] == ""


def checked(candidate, *names, timeout=60):
    """Verdicts of the examples of some faults on a platform, each as (API, verdict, reason)."""
    from sortlib.checking import check_many

    examples = {str((FAULTS[name].call, FAULTS[name].inputs)): FAULTS[name] for name in names}
    entries = [(fault.call, inputs_of(fault.inputs)) for fault in examples.values()]
    found = check_many(entries, "cpu", candidate, timeout)
    return [(row["api"], row["evidence"], row["reason"]) for frame in found for row in frame.to_dict("records")]


@built
def test_a_campaign_on_the_clean_device_finds_nothing(device):
    found = checked("simdev", *FAULTS)
    # Both sides run the same kernels, so a remark about NaN is one about both.
    accused = [row for row in found if row[1] != "identical" and "on both sides" not in row[2]]
    assert accused == []


@built
def test_a_campaign_finds_faults_and_survives_a_crash_and_a_hang(device):
    # gelu has no fault here. The hang comes last: every call that kills a process costs the start of two more.
    expected = {
        "layer_norm-one-pass": "suspect", "softmax-no-maximum": "nan", "linear-tf32": "config",
        "gelu-tanh": "identical", "conv2d-segfault": "crash", "relu-hang": "timeout",
    }  # fmt: skip
    injected = "+".join(name for name in expected if name != "gelu-tanh")
    found = checked(f"simdev:{injected}", *expected, timeout=4)
    assert [(api, verdict) for api, verdict, _ in found] == [
        (FAULTS[name].api, verdict) for name, verdict in expected.items()]  # fmt: skip
    assert "SIGSEGV" in found[4][2] and "no answer within 4 s" in found[5][2]


@built
def test_a_worker_process_has_the_faults_of_its_environment():
    code = (
        "import torch, sortlib.simdev.register; from sortlib import simdev; x = -torch.ones(2, device='simdev'); "
        "print([f.name for f in simdev.active()], torch.relu(x).tolist(), flush=True); x + x"
    )
    environment = {**os.environ, "SORTLIB_SIMDEV_FAULT": "relu-last-element,add-abort"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['relu-last-element', 'add-abort'] [0.0, -1.0]"
    assert done.returncode == -signal.SIGABRT
