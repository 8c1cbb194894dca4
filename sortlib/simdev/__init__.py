"""``simdev``: a device of PyTorch's PrivateUse1 kind that runs on the CPU and can be given faults.

Without a fault it returns the CPU's results bit for bit, since every operator is the CPU kernel on the device's own
memory. With one, a single API goes wrong in a known way, so a method that looks for faults can be measured::

    import torch
    from sortlib import simdev

    simdev.load()                                # builds the device on first use (needs a C++ compiler)
    x = torch.randn(4, 8, device="simdev")

    with simdev.fault("softmax-last-term"):      # one of the built-in faults; simdev.faults() lists them
        ...
    with simdev.fault("linear", lambda clean, input, weight, bias=None: clean(input, weight)):
        ...                                      # or one of your own: linear forgets its bias

As a platform, ``simdev`` is the clean device and ``simdev:linear-bf16`` the device with that fault:
``sl.run(cases, "cpu", "simdev:linear-bf16")``.
"""

import importlib

_HOMES = {
    "Injected": "injection", "active": "injection", "clear": "injection", "fault": "injection", "faults": "catalogue",
    "load": "device",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name):
    # Read on first use: whoever only asks for platforms should not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
