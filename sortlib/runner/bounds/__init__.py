"""What is right and how far rounding may lead from it: float64 truth and error bound of one call.

Bounds follow the families of ``sortlib.thresholds``, a module each: ``products``, ``conditioning``, ``steps`` and
``gradients``. ``double`` says what is right, and ``proof`` puts both together.
"""

from sortlib.runner.bounds.double import first_line, outputs_in_double, truth, widen
from sortlib.runner.bounds.families import depends_on_order, family, family_of
from sortlib.runner.bounds.form import Bound, as_arrays, pack, unit_roundoff, unpack
from sortlib.runner.bounds.proof import Proof, bound, prove

__all__ = [
    "Bound", "Proof", "as_arrays", "bound", "depends_on_order", "family", "family_of", "first_line",
    "outputs_in_double", "pack", "prove", "truth", "unit_roundoff", "unpack", "widen",
]  # fmt: skip
