"""Faults of the device: Python functions that take the place of a kernel.

A fault sits in the dispatcher at the operator that carries the API's own name (``aten::linear``, ``aten::layer_norm``,
``aten::add.Tensor`` with ``add_`` and ``add.out``), on the device's key. That is where a backend's own kernels sit, so
every way to the API meets it: the function, the module, the method, the operator sign and calls from C++. The device
runs composite operators (linear, softmax, ...) as one kernel, so a fault of matmul does not show in linear; faults of
inner operators such as addmm can be given by their own name.
"""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch.utils._pytree import tree_map

from sortlib.errors import SortError
from sortlib.simdev import catalogue, device

# The operators behind the APIs of the paper's Table I, without those that write in place or into ``out``.
OPERATORS = {
    "flatten": ("flatten.using_ints",),
    "mul": ("mul.Tensor",),
    "div": ("div.Tensor", "div.Tensor_mode"),
    "softmax": ("softmax.int",),
    "adaptive_avg_pool2d": ("adaptive_avg_pool2d",),
    "matmul": ("matmul",),
    "max_pool2d": ("max_pool2d",),
    "batch_norm": ("batch_norm",),
    "dropout": ("dropout",),
    "relu": ("relu",),
    "conv2d": ("conv2d", "conv2d.padding"),
    "gelu": ("gelu",),
    "linear": ("linear",),
    "layer_norm": ("layer_norm",),
    "add": ("add.Tensor",),
}

_active: list[Injected] = []


class Injected:
    """A fault in force; ``remove`` ends it, as does the end of a ``with`` block."""

    def __init__(self, name, api, library):
        self.name, self.api, self._library = name, api, library

    def remove(self):
        """Give the API its own kernel back."""
        if self in _active:
            _active.remove(self)
            self._library._destroy()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()

    def __repr__(self):
        return f"<fault {self.name} of {self.api}{'' if self in _active else ', removed'}>"


def fault(name: str, run=None) -> Injected:
    """Give the device a fault, until it is removed.

    Parameters
    ----------
    name : one of ``faults()``; or, with ``run``, an API of the paper's Table I or the name of an ATen operator.
    run : ``run(clean, *args, **kwargs)`` computes what the device returns. The arguments are those of the operator in
        ATen's schema; tensors are CPU tensors on the device's memory. ``clean`` is the operator itself.

    Returns
    -------
    ``Injected``.

    Raises
    ------
    SortError
        An unknown fault or API, one that has a fault already, or a machine that cannot build the device.
    """
    if run is None:
        found = catalogue.find(name)
        api, run = found.api, found.run
    else:
        api = name
        if not callable(run):
            raise SortError(f"fault of {api!r}: a function is needed, not {type(run).__name__}")
    device.load()
    overloads = _overloads(api)
    taken = next((other for other in _active if other.api == api), None)
    if taken:
        raise SortError(f"fault {name!r}: {api} has the fault {taken.name!r} already; remove it first")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
        for functional in overloads:
            for form, kind in _forms(functional):
                kernel = _Kernel(run, functional, form, kind)
                for key in kernel.keys:
                    library.impl(form, kernel.call, key)
    injected = Injected(name, api, library)
    _active.append(injected)
    return injected


def active() -> tuple[Injected, ...]:
    """The faults in force."""
    return tuple(_active)


def clear():
    """Remove every fault."""
    for injected in active():
        injected.remove()


# ---- which operators ----


def _overloads(api):
    if api in OPERATORS:
        return [_overload(name) for name in OPERATORS[api]]
    packet = getattr(torch.ops.aten, api, None) if api.isidentifier() and not api.startswith("__") else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise SortError(
            f"fault of {api!r}: no such API; valid: {', '.join(sorted(OPERATORS))}, or the name of an ATen operator"
        )
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return [o for o in overloads if not _out(o) and o._schema.arguments and "Tensor" in str(o._schema.arguments[0].type)
            and torch._C._dispatch_has_kernel(o.name())]  # fmt: skip


def _overload(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _out(overload):
    return any(argument.is_out for argument in overload._schema.arguments)


def _forms(functional):
    """(overload, kind) of everything that computes ``functional``: itself, in place, and into ``out``."""
    yield functional, "functional"
    if functional._schema.name.endswith("_"):
        return
    packet = functional.overloadpacket
    name = packet._qualified_op_name.removeprefix("aten::")
    inplace = getattr(getattr(torch.ops.aten, f"{name}_", None), functional._overloadname, None)
    if inplace is not None:
        yield inplace, "inplace"
    wanted = [argument.name for argument in functional._schema.arguments]
    for overload in (getattr(packet, one) for one in packet.overloads()):
        rest = [argument.name for argument in overload._schema.arguments if not argument.is_out]
        if _out(overload) and rest == wanted and len(overload._schema.returns) == 1:
            yield overload, "out"


# ---- the kernel in their place ----


class _Kernel:
    """Runs a fault in place of one operator.

    Parameters
    ----------
    run : the fault.
    functional : the operator that it is told to be.
    form : the operator that is replaced, which may write in place or into ``out``.
    """

    def __init__(self, run, functional, form, kind):
        self.run, self.functional, self.form, self.kind = run, functional, form, kind
        self.composite = torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), "CompositeImplicitAutograd")
        # PyTorch's own formulas give the others their gradients, above this key.
        self.keys = ("PrivateUse1", "AutogradPrivateUse1") if self.composite else ("PrivateUse1",)

    def call(self, *args, **kwargs):
        """The kernel as the dispatcher calls it."""
        nested = torch.ops.simdev.nested()
        if self.composite and torch.is_grad_enabled() and _needs_grad((args, kwargs)):
            if nested:
                return self.form._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            if self.kind == "functional":
                return _WithCleanGradient.apply(self, kwargs, *args)
            result = _WithCleanGradient.apply(self, {k: v for k, v in kwargs.items() if k != "out"}, *args)
            return (args[0] if self.kind == "inplace" else kwargs["out"]).copy_(result)
        return self.compute(_clean if nested else self.run, args, kwargs)

    def compute(self, run, args, kwargs):
        """The result of ``run`` on the device's memory, written to where the operator writes it."""
        lent = {}

        def lend(value):
            if not isinstance(value, torch.Tensor) or value.device.type != device.NAME:
                return value
            if id(value) not in lent:
                lent[id(value)] = (value, torch.ops.simdev.host(value))
            return lent[id(value)][1]

        out = kwargs.pop("out", None)
        hosts, named = tree_map(lend, args), tree_map(lend, kwargs)
        with torch.no_grad(), _device_random(self.functional):
            result = run(self.functional, *hosts, **named)
            if self.kind == "inplace":
                hosts[0].copy_(result)
                return args[0]
            if self.kind == "out":
                out.resize_(result.shape)
                torch.ops.simdev.host(out).copy_(result)
                return out
        owners = {id(host): tensor for tensor, host in lent.values()}

        def adopt(value):
            if not isinstance(value, torch.Tensor):
                return value
            return owners[id(value)] if id(value) in owners else torch.ops.simdev.adopt(value)

        return tree_map(adopt, result)


def _clean(operator, *args, **kwargs):
    return operator(*args, **kwargs)


def _needs_grad(values) -> bool:
    found = []
    tree_map(lambda value: found.append(value) if isinstance(value, torch.Tensor) else None, values)
    return any(tensor.requires_grad for tensor in found)


@contextlib.contextmanager
def _device_random(operator):
    """Random numbers that CPU kernels draw meanwhile come from the device's generator."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        yield
        return
    torch.ops.simdev.exchange_random()
    try:
        yield
    finally:
        torch.ops.simdev.exchange_random()


class _WithCleanGradient(torch.autograd.Function):
    """A faulty composite operator in a graph: its result is the fault's, its gradient that of the operator itself."""

    @staticmethod
    def forward(ctx, kernel, kwargs, *args):
        ctx.kernel, ctx.kwargs, ctx.args = kernel, kwargs, args
        ctx.random = torch.simdev.get_rng_state()
        functional = _Kernel(kernel.run, kernel.functional, kernel.functional, "functional")
        result = functional.compute(kernel.run, args, dict(kwargs))
        return result.clone() if any(result is arg for arg in args) else result

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in ctx.args]
        # Statistics that the operator updates as it runs were updated by the forward pass.
        inputs = [a.clone() if isinstance(a, torch.Tensor) and not a.requires_grad else a for a in inputs]
        wanted = [a for a in inputs if isinstance(a, torch.Tensor) and a.requires_grad]
        now = torch.simdev.get_rng_state()
        torch.simdev.set_rng_state(ctx.random)
        torch.ops.simdev.enter()
        try:
            with torch.enable_grad():
                result = ctx.kernel.functional(*inputs, **ctx.kwargs)
            found = iter(torch.autograd.grad(result, wanted, gradients[0], allow_unused=True))
        finally:
            torch.ops.simdev.leave()
            torch.simdev.set_rng_state(now)
        return None, None, *(next(found) if isinstance(a, torch.Tensor) and a.requires_grad else None for a in inputs)
