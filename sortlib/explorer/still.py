"""The still picture of an explorer: what an HTML page, or a notebook run without a browser, shows of it."""

from __future__ import annotations

import base64
from types import SimpleNamespace

from sortlib import details, figures, page
from sortlib.explorer.values import outputs
from sortlib.tables.frames import html_of


def still(study, pattern_id, entry, threshold, side, scale) -> dict:
    """The present choice by MIME type: HTML, the figure alone as PNG, and plain text.

    Parameters
    ----------
    entry : ``Entry``, or None for a pattern that was not run.
    """
    if entry is None:
        drawn, values = figures.pattern(study.pattern(pattern_id)), None
        title = f"Pattern {pattern_id}, not run in this study"
        tables = [("Where it occurs", details.occurrences(study, pattern_id))]
    else:
        one = entry.as_study(threshold)
        drawn = figures.amplification(one, entry.case.id, scale=scale, which=side)
        values = figures.outputs(one, entry.case.id) if any(map(outputs, entry.rows(threshold))) else None
        title = f"Pattern {pattern_id}, case {entry.case.id}"
        rows = entry.judged(threshold)
        shown = SimpleNamespace(judged=rows, judged_single=rows.iloc[:0], case=lambda _: entry.case)
        tables = [("Inputs", details.inputs(entry.case)), ("What was measured", details.calls(shown, entry.case.id))]
    image = _png(drawn)
    parts = [_headed(title, _image(drawn, image, title))]
    if values is not None:
        parts.append(_headed("Both outputs", _image(values, _png(values), "Histogram of each call's output")))
    parts += [_headed(name, html_of(table)) for name, table in tables]
    return {
        "text/html": f'<div class="sortlib-still">{"".join(parts)}</div>',
        "image/png": image,
        "text/plain": title,
    }


def _headed(name, content) -> str:
    return f"<p><b>{page.text(name)}</b></p>{content}"


def _image(figure, data, description) -> str:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return (f'<img alt="{page.text(description)}" width="{width}" height="{height}" '
            f'src="data:image/png;base64,{data}">')  # fmt: skip


def _png(figure) -> str:
    return base64.b64encode(figure._repr_png_()[0]).decode()
