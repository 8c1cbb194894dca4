"""Making the device known to PyTorch, and the module ``torch.simdev`` that goes with it."""

from __future__ import annotations

import functools
import sys
import types
import warnings

import torch

from sortlib.errors import SortError
from sortlib.simdev import build

NAME = "simdev"


class _Flags(types.ModuleType):
    """``torch.backends.simdev``.

    Attributes
    ----------
    allow_tf32 : whether faults that emulate TensorFloat-32 may round the inputs of products to it; as on a GPU, where
        ``torch.backends.cudnn.allow_tf32`` is on by default. A device without such a fault never rounds.
    """

    allow_tf32 = True


@functools.cache
def load():
    """Build the device if need be and register it as ``simdev``; later calls return at once.

    Gradients on the device need this to come before the first backward pass of the process; a warning says where it
    does not.

    Returns
    -------
    module
        ``torch.simdev``.

    Raises
    ------
    SortError
        No compiler, a failed build, or another PrivateUse1 device is registered in this process.
    """
    other = torch._C._get_privateuse1_backend_name()
    if other != "privateuseone":
        raise SortError(f"simdev cannot be registered: this process has the out-of-tree device {other!r} already")
    path = build.library()
    if not hasattr(torch.ops.simdev, "adopt"):  # a build has loaded it already
        try:
            torch.ops.load_library(path)
        except OSError as error:
            raise SortError(f"simdev cannot be loaded: {' '.join(str(error).split())[:300]}; delete {path}") from None
    torch.utils.rename_privateuse1_backend(NAME)
    torch.backends.simdev = _Flags("torch.backends.simdev", _Flags.__doc__)
    module = _module()
    torch._register_device_module(NAME, module)
    sys.modules[f"torch.{NAME}"] = module
    torch.utils.generate_methods_for_privateuse1_backend()
    _wake_autograd()
    return module


def _wake_autograd():
    """Let autograd make its queue for the device, and say so where it cannot.

    PyTorch counts the devices at the first backward pass of a process, and those that come later get no queue.
    """
    try:
        with torch.enable_grad():
            torch.ones(1, device=NAME, requires_grad=True).sum().backward()
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        warnings.warn("a backward pass ran before simdev was loaded, so autograd does not know the device in this "
                      "process: call simdev.load() first", stacklevel=3)  # fmt: skip


def _module():
    """What PyTorch asks of a device's module (see ``torch.utils.rename_privateuse1_backend``)."""
    module = types.ModuleType(f"torch.{NAME}", "The device simdev of sortlib.")
    generator = torch.ops.simdev.default_generator()

    def check(device):
        index = device if isinstance(device, int) else torch.device(device).index
        if index not in (None, 0, -1):
            raise RuntimeError(f"simdev has one device, number 0, not {index}")

    def get_rng_state(device=NAME):
        check(device)
        return generator.get_state()

    def set_rng_state(new_state, device=NAME):
        check(device)
        generator.set_state(new_state)

    def get_device_properties(device=NAME):
        check(device)
        return types.SimpleNamespace(name="CPU as an out-of-tree device", type=NAME)

    def seed():
        return generator.seed()

    def manual_seed(value):
        generator.manual_seed(int(value))

    class device:  # noqa: N801 - the name that every device module has
        """Within it, the given device is the current one; there is only one."""

        def __init__(self, index):
            check(index)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return False

    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        init=lambda: None,
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=check,
        device=device,
        synchronize=lambda device=0: check(device),
        current_stream=lambda device=0: torch.accelerator.current_stream(device),
        get_device_name=lambda device=0: get_device_properties(device).name,
        get_device_properties=get_device_properties,
        get_device_capability=lambda device=0: torch.accelerator.get_device_capability(device),
        memory_allocated=lambda device=0: torch.accelerator.memory_allocated(device),
        empty_cache=lambda: None,
        default_generators=(generator,),
        seed=seed,
        seed_all=seed,
        manual_seed=manual_seed,
        manual_seed_all=manual_seed,
        initial_seed=generator.initial_seed,
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        is_bf16_supported=lambda: True,
        flags=torch.backends.simdev,
        # What sortlib switches off, below this module, to see whether a difference is one of configuration.
        full_precision={"flags.allow_tf32": False},
    )
    return module
