"""Building blocks of a self-contained HTML page: escaped text, sortable tables, inline figures.

A page loads nothing: its policy forbids every request, figures are data URIs, style and script stand inside.
"""

from __future__ import annotations

import base64
import html
import math
import numbers

from sortlib.figures.style import to_svg

_LONG = 28  # characters of a cell above which a column may wrap
_ONE_PAGE = 24  # rows of a table that is printed on one page


def text(value) -> str:
    """A value as escaped text: numbers shortened, nothing for missing ones."""
    return html.escape(_plain(value))


def _plain(value) -> str:
    if _missing(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    if isinstance(value, numbers.Real):
        return f"{value:.4g}"
    return str(value)


def _missing(value) -> bool:
    return value is None or (isinstance(value, numbers.Real) and math.isnan(value))


def element(name, content, **attributes) -> str:
    """An element around content that is HTML already; attribute values are escaped here.

    ``class_`` stands for class, ``data_sort`` for data-sort; attributes without a value are left out.
    """
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    given = "".join(f' {names[key]}="{html.escape(str(value))}"' for key, value in attributes.items() if value)
    return f"<{name}{given}>{content}</{name}>"


def paragraph(*sentences) -> str:
    """A paragraph of plain text."""
    return element("p", text(" ".join(sentences)))


def bullets(items) -> str:
    """A list of plain texts; nothing for no items."""
    rows = "".join(element("li", text(item)) for item in items)
    return element("ul", rows) if rows else ""


def code(content) -> str:
    """Preformatted text; long lines wrap, so nothing of a command is out of sight."""
    return element("pre", element("code", text(content)))


def plural(noun, count) -> str:
    """A noun for a number of things: ``model`` for 1, else ``models``."""
    return noun if count == 1 else f"{noun}s"


def counted(count, noun) -> str:
    """A number with its noun: ``1 model``, ``1,200 models``."""
    return f"{count:,} {plural(noun, count)}"


def facts(pairs, compact=False, links=None) -> str:
    """Names with their values, as a definition list.

    Parameters
    ----------
    pairs : (name, value) pairs.
    compact : whether several stand beside each other.
    links : name -> anchor in the page to which its value leads.
    """
    links = links or {}
    rows = [
        element("dt", text(name))
        + element("dd", element("a", text(value), href=f"#{links[name]}") if name in links else text(value))
        for name, value in pairs
    ]
    if compact:
        return element("dl", "".join(element("div", row) for row in rows), class_="compact")
    return element("dl", "".join(rows))


def fold(summary, *content, printed=True, anchor="") -> str:
    """Content that is opened by a click, by a link to its anchor, and by printing unless it is for the screen only."""
    whole = element("summary", text(summary)) + "".join(content)
    return element("details", whole, class_="" if printed else "screen", id=anchor)


def section(anchor, title, *content) -> str:
    """A part of the page with a heading that links can point to."""
    return element("section", element("h2", text(title)) + "".join(content), id=anchor)


def figure(drawn, caption, description, wide=False) -> str:
    """A matplotlib figure as an image inside the page.

    Parameters
    ----------
    drawn : matplotlib figure.
    caption : plain text below it.
    description : what it shows, for those who cannot see it.
    wide : whether it fills the width of the page.
    """
    data = base64.b64encode(to_svg(drawn).encode()).decode()
    width, height = (round(inches * 96) for inches in drawn.get_size_inches())
    image = (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(description)}" '
        f'width="{width}" height="{height}">'
    )
    return element("figure", image + element("figcaption", text(caption)), class_="wide" if wide else "")


def table(frame, caption="", headings=None, groups=None, notes=None, links=None) -> str:
    """A DataFrame as a table that a click on a heading sorts; a last row named Total stays last.

    Parameters
    ----------
    frame : DataFrame; its index is left out.
    caption : plain text above it.
    headings : column -> shown heading; by default the column's name with spaces for underscores.
    groups : column -> heading above several neighbouring columns.
    notes : lines below it; ``frame.attrs["footnotes"]`` if not given.
    links : column -> {value: anchor in the page} of the cells that lead somewhere.
    """
    headings, groups, links = headings or {}, groups or {}, links or {}
    names = list(frame.columns)
    notes = frame.attrs.get("footnotes", ()) if notes is None else notes
    if not len(frame):
        return element("p", text(f"{caption}: " if caption else "") + "nothing.") + bullets(notes)
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    total = [rows.pop()] if rows[-1][0] == "Total" else []
    kinds = [_kind([row[number] for row in rows]) for number in range(len(names))]
    shown = [headings.get(name, str(name).replace("_", " ")) for name in names]
    head = _group_row(names, groups) + element("tr", "".join(
        element("th", element("span", text(name), role="button", tabindex="0"), scope="col", class_=kind)
        for name, kind in zip(shown, kinds, strict=True)
    ))  # fmt: skip
    leading = [links.get(name, {}) for name in names]
    body = "".join(_row(row, kinds, leading) for row in rows)
    foot = element("tfoot", "".join(_row(row, kinds, leading) for row in total)) if total else ""
    whole = element("caption", element("span", text(caption))) if caption else ""
    whole += element("thead", head) + element("tbody", body) + foot
    look = "scroll" if len(frame) > _ONE_PAGE else "scroll one-page"
    return element("div", element("table", whole), class_=look, tabindex="0") + bullets(notes)


def _kind(values) -> str:
    """Class of a column: number (or nothing to count at all), long (text that has to wrap) or short."""
    said = [value for value in values if not _missing(value) and value != "/"]
    if (said or "/" in values) and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) for value in said
    ):
        return "number"
    return "long" if any(len(_plain(value)) > _LONG for value in said) else "short"


def _group_row(names, groups) -> str:
    if not groups:
        return ""
    cells, number = "", 0
    while number < len(names):
        group = groups.get(names[number], "")
        span = 1
        while number + span < len(names) and groups.get(names[number + span], "") == group:
            span += 1
        cells += element("th", text(group), colspan=span, scope="colgroup") if group else f'<td colspan="{span}"></td>'
        number += span
    return element("tr", cells, class_="groups")


def _row(row, kinds, leading) -> str:
    cells = ""
    for value, kind, anchors in zip(row, kinds, leading, strict=True):
        sortable = kind == "number" and isinstance(value, numbers.Real) and not _missing(value)
        content = element("a", text(value), href=f"#{anchors[value]}") if value in anchors else text(value)
        cells += element("td", content, class_=kind, data_sort=repr(float(value)) if sortable else "")
    return element("tr", cells)


def document(title, lead, sections) -> str:
    """The whole page.

    Parameters
    ----------
    title : plain text.
    lead : HTML below the title.
    sections : (anchor, title, HTML content) triples.
    """
    links = "".join(element("li", element("a", text(name), href=f"#{anchor}")) for anchor, name, _ in sections)
    body = element("header", element("h1", text(title)) + lead)
    body += element("nav", element("ol", links), aria_label="Contents")
    body += element("main", "".join(section(*part) for part in sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


_STYLE = """
:root { color-scheme: light; --ink: #222; --faint: #5f5f5f; --rule: #d9d9d9; --accent: #1f4e79; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: #fff; margin: 0 auto;
  max-width: 75rem; padding: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .6rem; padding-top: .6rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
h4 { font-size: 1rem; margin: 0 0 .3rem; }
p, ul { max-width: 48rem; margin: .5rem 0; }
:is(p, li, h1, h2, h3, h4, summary, figcaption, caption) { overflow-wrap: anywhere; }
.scroll + ul { color: var(--faint); font-size: .86rem; }
.verdict { font-size: 1.1rem; font-weight: 600; }
.summary { border-left: 4px solid var(--rule); padding: .1rem 0 .1rem 1rem; margin: .8rem 0 1rem; }
.summary.accusing { border-color: #b3261e; }
.summary ul { padding-left: 1.2rem; }
.finding { border-left: 4px solid var(--rule); padding-left: 1rem; margin: 1rem 0; }
.finding:target { border-color: #b3261e; }
nav ol { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; list-style: none; counter-reset: part; }
nav li { counter-increment: part; }
nav li::before { content: counter(part) ". "; color: var(--faint); }
main { counter-reset: part; }
h2::before { counter-increment: part; content: counter(part) ". "; }
a { color: var(--accent); }
/* Shadows at the edges behind which a wide table goes on: white patches move with the table and cover them at its ends
   (background-attachment: local, CSS Backgrounds and Borders 3, section 2.5). */
.scroll { overflow-x: auto; margin: .8rem 0;
  background: linear-gradient(to right, #fff 1.5rem, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(to left, #fff 1.5rem, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to right, rgb(0 0 0 / .3), transparent) left / 1rem 100% no-repeat scroll,
    linear-gradient(to left, rgb(0 0 0 / .3), transparent) right / 1rem 100% no-repeat scroll #fff; }
table { border-collapse: collapse; font-size: .86rem; }
caption { text-align: left; font-weight: 600; padding: .2rem .5rem .3rem 0; }
/* A caption is as wide as its table; the text in it stays in sight and wraps where the table is cut. */
@media screen {
  .scroll { container-type: inline-size; }
  caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 3rem); max-width: 100cqi; }
}
th, td { padding: .2rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
.long { overflow-wrap: anywhere; min-width: 14em; }
.short { white-space: nowrap; }
th { vertical-align: bottom; border-bottom: 1px solid var(--ink); }
.groups th { text-align: left; border-left: 1px solid var(--rule); border-bottom-color: var(--rule); }
.groups td { border: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
th span { cursor: pointer; }
th span:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort=ascending] span::after { content: " \\25B2"; }
th[aria-sort=descending] span::after { content: " \\25BC"; }
tfoot td { font-weight: 600; border-top: 1px solid var(--ink); }
tbody tr:hover { background: #f6f8fa; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .86rem; max-width: 48rem; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
.pair > * { flex: 1 1 26rem; min-width: 0; }
.pair > .whole { flex-basis: 100%; }
.pair img, .wide img { width: 100%; }
.wide img { max-width: min(100%, 56rem); }
.pair .case img { width: auto; }
dl { display: grid; grid-template-columns: fit-content(60%) 1fr; gap: .1rem 1.2rem; margin: .6rem 0; }
dt { color: var(--faint); }
@media screen and (max-width: 30rem) {
  dl { grid-template-columns: minmax(0, 1fr); }
  dd + dt { margin-top: .3rem; }
}
dl.compact { display: flex; flex-wrap: wrap; gap: .3rem 2rem; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { background: #f6f8fa; border: 1px solid var(--rule); padding: .6rem .8rem; font-size: .86rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
@media print {
  @page { margin: 15mm; }
  body { font-size: 10pt; padding: 0; max-width: none; }
  nav, .screen { display: none; }
  a { color: inherit; text-decoration: none; }
  h2, h3, h4, h2 + p, caption, thead, summary, summary + p { break-after: avoid; }
  figure, p, tr, dl, pre, .one-page { break-inside: avoid; }
  tbody tr:nth-child(-n+3) { break-before: avoid; }
  figure img, .wide img { max-height: 230mm; max-width: 100%; width: auto; }
  figure { margin: .5rem 0; }
  .pair { display: block; }
  .pair img { max-height: 100mm; max-width: 100%; width: auto; }
  thead { display: table-header-group; }
  tfoot { display: table-row-group; }
  .scroll { overflow: visible; background: none; }
  pre { font-size: 8pt; line-height: 1.3; }
  table { font-size: 7pt; }
  th, td { padding: .1rem .15rem; }
  .long { min-width: 7em; }
  .case table { font-size: 6.5pt; }
  .case :is(th, td) { padding: .1rem .12rem; }
  .case .long { min-width: 6em; }
  .case + .case { margin-top: 2rem; }
}
"""

# Headings sort their column; printing opens what is folded.
_SCRIPT = """
"use strict";
for (const heading of document.querySelectorAll("th[scope=col]")) {
  const button = heading.querySelector("[role=button]");
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    button.click();
  });
  button.addEventListener("click", () => {
    const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = heading.classList.contains("number");
    const key = (row) => {
      const cell = row.cells[column];
      return numeric ? (cell.dataset.sort ? Number(cell.dataset.sort) : null) : cell.textContent || null;
    };
    const rows = Array.from(body.rows, (row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
  });
}
const openTarget = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", openTarget);
openTarget();
let folded = [];
addEventListener("beforeprint", () => {
  folded = Array.from(document.querySelectorAll("details:not([open])"));
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
"""
