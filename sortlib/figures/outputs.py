"""The outputs of a case's calls on both platforms, as small histograms."""

from __future__ import annotations

import math

from matplotlib.ticker import PercentFormatter

from sortlib.apis import paper_name
from sortlib.figures.bars import both_outputs
from sortlib.figures.drawing import nothing
from sortlib.figures.heatmap import rows_of
from sortlib.figures.style import SORT_COLOUR, StudyFigure, styled

_BARS = 24
_COLUMNS = 4


@styled
def outputs(study, case_id):
    """Distribution of each call's output on both platforms.

    Parameters
    ----------
    study : study with outcomes.
    case_id : id of one of its cases.

    Returns
    -------
    matplotlib.figure.Figure
        A panel per call, in the order of the case: grey the reference's output, a line the candidate's on the
        reference's values; of the first output, values other than 0, from a sample of at most 2,048. Calls without
        such values, or with one value alone, are left out.

    Raises
    ------
    SortError
        No such case, or it was not run.
    """
    rows = rows_of(study, case_id)
    found = [(row, shown) for row in rows if (shown := both_outputs(row, _BARS))]
    if not found:
        return nothing("No distribution of outputs is known.")
    columns = min(_COLUMNS, len(found))
    lines = math.ceil(len(found) / columns)
    figure = StudyFigure(figsize=(2.1 * columns + 0.4, 1.55 * lines + 0.45), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (row, shown) in zip(panels, found, strict=False):
        _panel(axes, row, shown)
    for axes in panels[len(found) :]:
        axes.axis("off")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _panel(axes, row, shown):
    axes.stairs(shown.reference, shown.edges, fill=True, color="#cfcfcf", label=f"reference ({row['reference']})")
    axes.stairs(shown.candidate, shown.edges, color=SORT_COLOUR, linewidth=1.4, label=f"candidate ({row['candidate']})")
    axes.set_title(f"{row['node']}: {paper_name(row['api'])}")
    axes.set_xlim(shown.edges[0], shown.edges[-1])
    axes.set_ylim(0, 1.05 * max(*shown.reference, *shown.candidate))
    axes.locator_params(axis="both", nbins=3)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(labelsize=7)
