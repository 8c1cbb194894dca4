"""Second opinions: what is right by another way than the float64 kernel, which may share a defect.

Activations are asked for their limit at infinity, special functions are asked of SciPy, and everything that PyTorch
can take apart is computed from its decomposition in float64.

mpmath is not asked. On 25 special functions SciPy is within 3e-14 of it (relative, absolute below 1), so it would know
nothing that SciPy does not, and where a function has no value by convention (zeta below 1, say) it continues it, which
would accuse the convention. PyTorch's float64 kernels are as close but for bessel_j0, j1, y0, y1 (up to 9e-7 off),
airy_ai (3e-6) and polygamma(1) (2e-9): the float32 kernels use the same coefficients, and PyTorch's own tests accept
1e-5 of Bessel's and Airy's functions in float64, so a finite value of the float64 kernel stands.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sortlib import thresholds
from sortlib.features import map_tensors
from sortlib.runner.execution import tensors_in

FAR = 1e30  # in the place of infinity: far beyond where any activation still changes its form


def corrected(api: str, call, arguments, outputs):
    """The float64 outputs, with NaN replaced where a second opinion knows a number.

    Parameters
    ----------
    call : arguments -> float64 outputs, or None where the call fails.
    arguments, outputs : of the float64 call.

    Returns
    -------
    (outputs, who was asked); the text is empty where nothing changed.
    """
    nan = [output.is_floating_point() and bool(output.isnan().any()) for output in outputs]
    if not any(nan) or any(t.isnan().any() for t in tensors_in([a.value for a in arguments]) if t.is_floating_point()):
        return outputs, ""
    if api in thresholds.LIMITS:
        other, who = call([a._replace(value=map_tensors(a.value, _far)) for a in arguments]), "the limit at infinity"
    else:
        other, who = _scipy(api, arguments), "SciPy"
    if other is None or [o.shape for o in other] != [o.shape for o in outputs]:
        return outputs, ""
    better = [torch.where(o.isnan() & ~b.isnan(), b, o) if bad else o
              for o, b, bad in zip(outputs, other, nan, strict=True)]  # fmt: skip
    changed = any(not torch.equal(o.isnan(), b.isnan()) for o, b, bad in zip(outputs, better, nan, strict=True) if bad)
    return (better, who) if changed else (outputs, "")


def asked(api: str) -> bool:
    """Whether ``corrected`` knows anything about NaN of this API."""
    return api in thresholds.LIMITS or api in _IN_SCIPY


def _far(_, tensor):
    return tensor.clamp(-FAR, FAR) if tensor.is_floating_point() else tensor


# Canonical API -> name in scipy.special, for functions of one or two real arguments in the same order.
_IN_SCIPY = {
    "igamma": "gammainc", "igammac": "gammaincc", "lgamma": "gammaln", "digamma": "digamma", "erfinv": "erfinv",
    "special.zeta": "zeta", "special.bessel_j0": "j0", "special.bessel_j1": "j1", "special.bessel_y0": "y0",
    "special.bessel_y1": "y1", "i0": "i0", "special.i0e": "i0e", "special.i1": "i1", "special.i1e": "i1e",
    "special.modified_bessel_k0": "k0", "special.modified_bessel_k1": "k1", "special.ndtri": "ndtri",
    "special.scaled_modified_bessel_k0": "k0e", "special.scaled_modified_bessel_k1": "k1e", "erf": "erf",
    "special.modified_bessel_i0": "i0", "special.modified_bessel_i1": "i1", "special.erfcx": "erfcx",
}  # fmt: skip


def _scipy(api, arguments):
    if api not in _IN_SCIPY:
        return None
    try:
        from scipy import special
    except ImportError:  # an extra of the workbench; a worker needs only torch and numpy
        return None
    values = [a.value.detach().cpu().double().numpy() if isinstance(a.value, torch.Tensor) else a.value
              for a in arguments]  # fmt: skip
    try:
        found = getattr(special, _IN_SCIPY[api])(*values)
    except (TypeError, ValueError):
        return None
    return [torch.as_tensor(found, dtype=torch.float64)]


class Decomposed(TorchDispatchMode):
    """Within it, operators that PyTorch can take apart run as their decomposition into simpler ones."""

    def __init__(self):
        super().__init__()
        from torch._decomp import decomposition_table

        self.table = decomposition_table
        self.used = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.table:
            self.used = True
            with self:
                return self.table[func](*args, **kwargs)
        return func(*args, **kwargs)


def decomposed(call):
    """Outputs of a float64 call computed from decompositions, or None where there are none or they fail.

    Parameters
    ----------
    call : () -> outputs, or None where the call fails.
    """
    mode = Decomposed()
    try:
        with mode:
            outputs = call()
    except Exception:  # decompositions do not cover every form of a call
        return None
    return outputs if mode.used else None
