"""Tables as LaTeX and HTML for papers and slides, by great-tables, with footnotes below."""

from __future__ import annotations

import re

import pandas as pd

from sortlib.tables.frames import words_of


def latex(table: pd.DataFrame, title: str = "") -> str:
    """A ``table`` environment with booktabs rules; cells as they are shown in notebooks, ``/`` for nothing."""
    made = _made(table, title)
    return re.sub(r"\n{3,}", "\n\n", made.as_latex()) + "\n"


def page(table: pd.DataFrame, title: str = "") -> str:
    """An HTML table with its own style, which needs no other file."""
    # great-tables gives each table a random id, which would make two equal tables differ
    return _made(table, title).with_id("table").as_raw_html() + "\n"


def _made(table, title):
    from great_tables import GT

    columns = [[words_of(value) for value in table.iloc[:, place]] for place in range(table.shape[1])]
    names = list(map(str, table))
    shown = pd.DataFrame({name: [word for word, _ in column] for name, column in zip(names, columns, strict=True)})
    numbers = [bool(column) and all(number for _, number in column) for column in columns]
    right = [name for name, number in zip(names, numbers, strict=True) if number]
    made = GT(shown)
    if title:
        made = made.tab_header(title=title)
    if right:
        made = made.cols_align("right", columns=right)
    left = [name for name in names if name not in right]
    if left:
        made = made.cols_align("left", columns=left)
    for note in table.attrs.get("footnotes", ()):
        made = made.tab_source_note(note)
    return made
