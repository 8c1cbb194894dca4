"""What is known of a built-in fault, and how a module collects its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """A known defect of one API.

    Attributes
    ----------
    name : API and defect, such as ``linear-bf16``.
    api : canonical name of the only API that it changes.
    what : one sentence.
    verdict : what a right judgement says of a call that shows it (``sortlib.judging.Verdict``).
    needs : which inputs show it; empty where any float32 input does.
    call, inputs : an expression and NumPy expressions for its inputs, in the form of ``sortlib check``, that show it.
    run : ``run(clean, *args, **kwargs)``, see ``sortlib.simdev.fault``.
    """

    name: str
    api: str
    what: str
    verdict: str
    needs: str
    call: str
    inputs: dict = field(hash=False)
    run: Callable = field(repr=False)


def with_nan(*shape) -> str:
    """A NumPy expression for normal numbers with a NaN in about every tenth place."""
    return f"np.where(rng.uniform(size={shape}) < .1, np.nan, rng.standard_normal({shape})).astype('f4')"


# A call of each API on values that any model could hold.
CALLS = {
    "linear": ("F.linear(x, w, b)", {
        "x": "rng.standard_normal((8, 64), 'f4')", "w": "rng.standard_normal((16, 64), 'f4')",
        "b": "rng.standard_normal(16, 'f4')"}),
    "matmul": ("torch.matmul(x, y)", {
        "x": "rng.standard_normal((3, 8, 64), 'f4')", "y": "rng.standard_normal((3, 64, 16), 'f4')"}),
    "conv2d": ("F.conv2d(x, w, b, padding=1)", {
        "x": "rng.standard_normal((2, 8, 12, 12), 'f4')", "w": "rng.standard_normal((4, 8, 3, 3), 'f4')",
        "b": "rng.standard_normal(4, 'f4')"}),
    "add": ("x + y", {"x": "rng.standard_normal((4, 33), 'f4')", "y": "rng.standard_normal((4, 33), 'f4')"}),
    "mul": ("x * y", {"x": "rng.standard_normal((4, 33), 'f4')", "y": "rng.standard_normal((4, 33), 'f4')"}),
    "div": ("x / y", {"x": "rng.standard_normal((4, 33), 'f4')", "y": "rng.standard_normal((4, 33), 'f4') + 4"}),
    "relu": ("F.relu(x)", {"x": "-np.abs(rng.standard_normal((4, 33), 'f4'))"}),
    "gelu": ("F.gelu(x)", {"x": "rng.standard_normal((4, 33), 'f4')"}),
    "dropout": ("F.dropout(x, 0.25, training=False)", {"x": "rng.standard_normal((4, 33), 'f4')"}),
    "flatten": ("torch.flatten(x, 1)", {"x": "rng.standard_normal((2, 3, 4, 5), 'f4')"}),
    "softmax": ("F.softmax(x, dim=-1)", {"x": "rng.standard_normal((4, 33), 'f4')"}),
    "layer_norm": ("F.layer_norm(x, (64,), w, b)", {
        "x": "rng.standard_normal((20, 64), 'f4')", "w": "rng.standard_normal(64, 'f4')",
        "b": "rng.standard_normal(64, 'f4')"}),
    "batch_norm": ("F.batch_norm(x, m, v, w, b)", {
        "x": "rng.standard_normal((4, 20, 5, 5), 'f4')", "m": "rng.standard_normal(20, 'f4')",
        "v": "np.abs(rng.standard_normal(20, 'f4')) + np.float32(.5)", "w": "rng.standard_normal(20, 'f4')",
        "b": "rng.standard_normal(20, 'f4')"}),
    "max_pool2d": ("F.max_pool2d(x, 3, 2, 1)", {"x": "rng.standard_normal((2, 3, 9, 9), 'f4')"}),
    "adaptive_avg_pool2d": ("F.adaptive_avg_pool2d(x, 3)", {"x": "rng.standard_normal((2, 3, 8, 8), 'f4')"}),
}  # fmt: skip


def collector(faults: list):
    """A decorator ``@fault(name, what, ...)`` that appends to ``faults``; the API is the name up to the first dash."""

    def fault(name, what, verdict="suspect", needs="", call=None, inputs=None):
        api = name.partition("-")[0]
        usual_call, usual_inputs = CALLS[api]

        def keep(run):
            shown = usual_inputs if call is None else {}
            record = Fault(name, api, what, verdict, needs, call or usual_call, shown | (inputs or {}), run)
            faults.append(record)
            return run

        return keep

    return fault
