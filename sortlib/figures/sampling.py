"""Generated values beside recorded ones: why it matters how a sampler draws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sortlib.apis import paper_name
from sortlib.drawing import SAMPLERS, draw
from sortlib.errors import SortError, choices
from sortlib.features import LEVELS, TensorFeatures
from sortlib.figures.bars import shares
from sortlib.figures.drawing import nothing
from sortlib.figures.style import INK, SINGLE_COLOUR, SORT_COLOUR, StudyFigure, styled

_BARS = 40
_DRAWN = 20_000  # values of each sampler: enough that a bar of 1 % is right to a tenth of it
_LOOKS = {
    "quantile": {"color": SORT_COLOUR, "linewidth": 1.6, "linestyle": "-"},
    "uniform": {"color": SINGLE_COLOUR, "linewidth": 1.6, "linestyle": (0, (4, 1.5))},
}


@styled
def value_distributions(study, apis=None, count=6):
    """Values that each sampler draws for recorded tensors, beside the recorded distribution.

    Parameters
    ----------
    study : study whose models were traced.
    apis : canonical names; the ``count`` most frequently called that take a floating-point tensor if not given.
    count : number of panels if ``apis`` is not given.

    Returns
    -------
    matplotlib.figure.Figure
        A panel per API with the first tensor that another call fed it, on the first real input: grey the recorded
        quantile sketch, lines what ``quantile`` (blue) and ``uniform`` (orange, the paper's way) draw. The standard
        deviations stand in the panel: between a minimum and a maximum uniform values spread far more than real ones.

    Raises
    ------
    SortError
        An API without such a record.
    """
    found = _tensors(study)
    if apis is None:
        chosen = _different(found)[: max(1, count)]
    else:
        missing = [api for api in apis if api not in found]
        if missing:
            said = f"API {missing[0]!r} has no record of a floating-point tensor; with one: {choices(found)}"
            raise SortError(f"{study.directory}: {said}")
        chosen = list(apis)
    if not chosen:
        return nothing("No floating-point tensor was recorded.")
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = StudyFigure(figsize=(2.75 * columns + 0.3, 2.15 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, api in zip(panels, chosen, strict=False):
        _panel(panel, api, *found[api])
    for panel in panels[len(chosen) :]:
        panel.axis("off")
    for panel in panels[0 : len(chosen) : columns]:
        panel.set_ylabel("Share of values")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return figure


def _tensors(study) -> dict[str, tuple[str, TensorFeatures]]:
    """By API, the most frequent first: argument and features of the tensor to show."""
    calls = {}
    for graph in study.graphs:
        for node in graph.nodes:
            calls[node.api] = calls.get(node.api, 0) + 1
    found = {}
    for record in study.records:
        for path, features in record.tensors() if record.api not in found else ():
            spread = features.quantiles and features.quantiles[0] < features.quantiles[-1]
            if features.role == "call" and features.dtype.startswith(("float", "bfloat")) and spread:
                found[record.api] = ".".join(map(str, path)), features
                break
    return dict(sorted(found.items(), key=lambda item: (-calls[item[0]], item[0])))


def _different(found) -> list[str]:
    """APIs without those that were given the same values as one before, such as a view of them."""
    seen = {}
    for api, (_, features) in found.items():
        seen.setdefault((features.quantiles, features.zeros), api)
    return list(seen.values())


def _panel(axes, api, argument, features):
    low, high = features.minimum, features.maximum
    edges = np.linspace(low, high, _BARS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    recorded = shares(edges, features.quantiles)
    axes.fill_between(np.repeat(edges, 2)[1:-1], np.repeat(recorded, 2), color="#cfcfcf", linewidth=0,
                      label="recorded (quantile sketch)", zorder=1)  # fmt: skip
    lines = [("recorded", features.std)]
    for sampler in SAMPLERS:
        values = _values(features, sampler)
        drawn = np.histogram(values[values != 0], edges)[0] / max(1, (values != 0).sum())
        axes.step(middle, drawn, where="mid", label=f"drawn: {sampler}", zorder=2, **_LOOKS[sampler])
        lines.append((sampler, float(values.std())))
    text = "\n".join(f"{name} {value:.3g}" for name, value in lines if value is not None)
    side = "right" if features.quantiles[LEVELS.index(0.5)] < (low + high) / 2 else "left"
    axes.text(0.98 if side == "right" else 0.02, 0.97, f"standard deviation\n{text}", transform=axes.transAxes, ha=side,
              va="top", fontsize=7, color=INK)  # fmt: skip
    axes.set_title(f"{paper_name(api)}: {argument}")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylim(1e-4, 1.5)
    axes.set_xlabel("Value, other than 0" if features.zeros else "Value")


def _values(features, sampler):
    form = replace(features, shape=(_DRAWN,), strides=(1,))
    return draw(form, f"figure/{sampler}", sampler).double().numpy()
