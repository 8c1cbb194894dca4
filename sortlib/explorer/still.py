"""The still picture of an explorer: what an HTML page, or a notebook run without a browser, shows of it."""

from __future__ import annotations

import base64
from types import SimpleNamespace

from sortlib import details, figures, page


def still(study, pattern_id, entry, threshold, side, scale) -> dict:
    """The present choice by MIME type: HTML, the figure alone as PNG, and plain text.

    Parameters
    ----------
    entry : ``Entry``, or None for a pattern that was not run.
    """
    if entry is None:
        figure = figures.pattern(study.pattern(pattern_id))
        title = f"Pattern {pattern_id}, not run in this study"
        tables = [("Where it occurs", details.occurrences(study, pattern_id))]
    else:
        figure = figures.amplification(entry.as_study(threshold), entry.case.id, scale=scale, which=side)
        title = f"Pattern {pattern_id}, case {entry.case.id}"
        rows = entry.judged(threshold)
        shown = SimpleNamespace(judged=rows, judged_single=rows.iloc[:0], case=lambda _: entry.case)
        tables = [("Inputs", details.inputs(entry.case)), ("What was measured", details.calls(shown, entry.case.id))]
    image, size = figure._repr_png_()
    parts = [f'<p><b>{page.text(title)}</b></p><img alt="{page.text(title)}" width="{size["width"]}" '
             f'height="{size["height"]}" src="data:image/png;base64,{base64.b64encode(image).decode()}">']  # fmt: skip
    for name, table in tables:
        body = table.to_html(index=False, na_rep="/", float_format=lambda value: f"{value:.4g}", border=0)
        parts.append(f'<p><b>{page.text(name)}</b></p><div style="overflow-x:auto">{body}</div>')
    return {
        "text/html": f'<div class="sortlib-still">{"".join(parts)}</div>',
        "image/png": base64.b64encode(image).decode(),
        "text/plain": title,
    }
