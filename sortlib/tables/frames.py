"""The form of every table: a DataFrame with footnotes, and how it is shown."""

from __future__ import annotations

import html
import numbers
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sortlib.apis import paper_name

NOTHING = "/"  # in a cell where there is nothing to count


def frame(wanted):
    """The first two columns of a table by API, with a Total row."""
    names = [*wanted, "Total"]
    return pd.DataFrame({"api": names, "paper_name": [paper_name(api) for api in names]})


def as_column(apis, cells):
    """A column from a dictionary by API; ``/`` where it has no entry."""
    return pd.Series([cells.get(api, NOTHING) for api in apis], index=apis.index, dtype=object)


def with_total(apis, cells):
    """The same, with the sum in the Total row, unless there is nothing to add up."""
    return as_column(apis, {**cells, "Total": sum(cells.values())} if cells else {})


def table_of(rows, columns, notes=()):
    """A table from dictionaries, with its footnotes."""
    return noted(pd.DataFrame(rows, columns=columns), notes)


def noted(table, notes):
    """The table with these footnotes, each once."""
    table.attrs["footnotes"] = list(dict.fromkeys(notes))
    return table


@dataclass(frozen=True)
class Shown:
    """A table with its footnotes and perhaps a title, for a notebook."""

    table: pd.DataFrame
    footnotes: tuple[str, ...] = ()
    title: str = ""

    def _repr_html_(self):
        head = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self._lines())
        body = html_of(self.table)
        return f"{head}{body}<ul>{notes}</ul>" if notes else head + body

    def __repr__(self):
        shown = [] if self.table.empty else [self.table.to_string(index=False, na_rep=NOTHING, float_format=_short)]
        return "\n".join([*([self.title] if self.title else []), *shown, *(f"* {note}" for note in self._lines())])

    def _lines(self):
        return [*(["no rows"] if self.table.empty else []), *self.footnotes]


def _short(value):
    return f"{value:.4g}"


def html_of(table: pd.DataFrame) -> str:
    """A table with whole texts and unbroken numbers, which scrolls by itself where it is wider than the page; pandas
    cuts the one and lets a browser wrap the other."""
    columns = [[words_of(value) for value in table.iloc[:, place]] for place in range(table.shape[1])]
    right = [all(number for _, number in column) for column in columns]
    head = "".join(_cell("th", str(name), number) for name, number in zip(table, right, strict=True))
    rows = "".join(f"<tr>{''.join(_cell('td', *cell) for cell in row)}</tr>" for row in zip(*columns, strict=True))
    return (f'<div style="overflow-x: auto"><table class="dataframe"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>")  # fmt: skip


def words_of(value):
    """A cell's text, and whether it is a number or nothing to count."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return NOTHING, True
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_)):
        return str(value) if isinstance(value, numbers.Integral) else _short(value), True
    return str(value), str(value) == NOTHING


def _cell(tag, words, number):
    space = "normal; min-width: 16em" if len(words) > _LONG else "nowrap"
    return (
        f'<{tag} style="text-align: {"right" if number else "left"}; white-space: {space}">{html.escape(words)}</{tag}>'
    )


_LONG = 40  # characters above which a cell may take several lines


def show(table: pd.DataFrame, *columns: str) -> Shown:
    """A table with its footnotes, for reading.

    Parameters
    ----------
    table : one of this package's tables, or any DataFrame.
    columns : beginnings of the column names to keep; all if not given. API and method are always kept. A single
        beginning is left out of the names that are shown. Footnotes on columns that are left out are too.
    """
    kept = [name for name in table if not columns or name in ("api", "method")
            or (name.startswith(columns) and name != "paper_name")]  # fmt: skip
    shown = table[kept]
    if len(columns) == 1:
        shown = shown.rename(columns=lambda name: name.removeprefix(columns[0]) or name)
    notes = [note for note in table.attrs.get("footnotes", ()) if _concerns(note, table, kept)]
    return Shown(shown, tuple(notes))


def _concerns(note, table, kept) -> bool:
    """Whether a footnote is about a column that is kept, or about no certain column.

    The names before its colon are beginnings of column names: ``DeepREL-V and DeepREL-S: ...``, ``paper_*: ...``.
    """
    names = [name.lower().removesuffix("-api").rstrip("*_") for name in note.partition(":")[0].split(" and ")]
    beginnings = tuple(f"{name}{end}" for name in names for end in ("_", "-"))
    meant = [column for column in table if f"{column}_".lower().startswith(beginnings)]
    return not meant or not set(meant).isdisjoint(kept)
