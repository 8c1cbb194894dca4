"""The notebooks as the repository keeps them: with the outputs that tell something, and nothing of a machine.

``python -m sortlib.committed runs/quick`` executes them on a study and keeps their cleaned outputs; ``faults`` is what
a test asks, so that they stay that way.
"""

from __future__ import annotations

import ast
import base64
import io
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

from tqdm.auto import tqdm

from sortlib.notebooks import FOLDER, SWEEP, execute, notebooks

LARGEST = 500_000  # bytes of a notebook
MEDIAN_LINES, LONG_LINES, SHORT_SHARE = 3, 10, 0.9
MACHINE = "machine"  # tag of cells whose output depends on the machine and is not kept
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_COLOURS, _WIDEST = 64, 1200  # colours and pixels of a kept picture; the figures are flat, so that few are enough
_WIDGET = "application/vnd.jupyter.widget-view+json"
_OF_A_MACHINE = {
    "an absolute path": r"(?<![\w.])/(?:home|Users|root|tmp|usr|opt|var|mnt|private)/|site-packages|[A-Z]:\\\\\w"
    f"|{re.escape(str(FOLDER.parent))}",
    "an address in memory": r"\bat 0x[0-9a-f]{6,}",
    "a progress bar": r"\d(?:it|s)/(?:it|s)\b|\[\d\d:\d\d<",
    "a time": r"\b\d+(?:\.\d+)? ?(?:ms|seconds)\b",
}


def refresh(path, parameters, into=None) -> Path:
    """Execute a notebook and keep its outputs.

    Parameters
    ----------
    path : of a notebook of the repository.
    parameters : for papermill; folders relative to that of the notebooks, since outputs may show them.
    into : file to write; the notebook itself if not given.
    """
    import nbformat

    path = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        executed = Path(folder) / path.name
        execute(path, executed, parameters)
        outputs = {cell.id: cell.get("outputs", []) for cell in nbformat.read(executed, as_version=4).cells}
    book = nbformat.read(path, as_version=4)
    book.metadata = nbformat.from_dict(KERNEL)
    for cell in book.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in ("tags",) if key in cell.metadata})
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [] if MACHINE in _tags(cell) else _kept(outputs[cell.id])
    path = Path(into) if into else path
    nbformat.write(book, path)
    return path


def _tags(cell) -> list:
    return cell.metadata.get("tags", [])


def _kept(outputs) -> list:
    """Outputs without what only a running kernel can show, and without their numbers."""
    kept = []
    for output in outputs:
        if output.output_type in ("display_data", "execute_result"):
            if _WIDGET in output.data:
                continue  # a picture of the widget stands beside it
            if "<img " in output.data.get("text/html", ""):
                output.data.pop("image/png", None)  # the same picture again
            output.data = {kind: _smaller(kind, content) for kind, content in output.data.items()}
            if output.output_type == "execute_result":
                output.execution_count = None
        kept.append(output)
    return kept


def _smaller(kind, content):
    if kind == "image/png":
        return _palette(content)
    if kind == "text/html":
        return re.sub(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=]+", lambda found: _palette(found[0]), content)
    return content


def _palette(encoded) -> str:
    """A PNG with few colours instead of millions, a third of its size."""
    from PIL import Image

    picture, buffer = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"), io.BytesIO()
    if picture.width > _WIDEST:
        picture = picture.resize((_WIDEST, round(picture.height * _WIDEST / picture.width)), Image.Resampling.LANCZOS)
    # Colours that cover the range: by frequency, a small red patch would become brown.
    picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def faults(path) -> list[str]:
    """What a notebook must not be committed with, a line each; empty where all is well."""
    import nbformat

    path = Path(path)
    text = path.read_text(encoding="utf-8")
    book = nbformat.reads(text, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    found = []
    if len(text.encode()) > LARGEST:
        found.append(f"has {len(text.encode()):,} bytes; {LARGEST:,} at most")
    if book.metadata != KERNEL:
        found.append("holds metadata of a kernel or a machine")
    lengths = [len(cell.source.splitlines()) for cell in code]
    if statistics.median(lengths) > MEDIAN_LINES:
        found.append(f"the median of its code cells is {statistics.median(lengths):g} lines; {MEDIAN_LINES} at most")
    if sum(length <= LONG_LINES for length in lengths) < SHORT_SHARE * len(lengths):
        found.append(f"more than {1 - SHORT_SHARE:.0%} of its code cells have above {LONG_LINES} lines")
    for cell in code:
        found += [f"cell {cell.source.splitlines()[0]!r}: {fault}" for fault in _cell_faults(cell)]
    return found


def _cell_faults(cell):
    if set(cell.metadata) - {"tags"}:
        yield f"holds metadata {', '.join(sorted(set(cell.metadata) - {'tags'}))}"
    if cell.execution_count is not None:
        yield "has a number of execution"
    if MACHINE in _tags(cell):
        if cell.outputs:
            yield f"keeps an output although it is tagged {MACHINE!r}"
    elif _shows(cell.source) and not cell.outputs:
        yield "shows something, but no output is kept"
    for output in cell.outputs:
        if output.output_type == "error" or output.get("name") == "stderr":
            yield "keeps an error"
        for text in _texts(output):
            yield from (f"its output holds {name}: {match[0]!r}" for name, pattern in _OF_A_MACHINE.items()
                        if (match := re.search(pattern, text)))  # fmt: skip


def _shows(source) -> bool:
    """Whether a cell ends with a value or prints one."""
    statements = ast.parse(source).body
    return bool(statements) and isinstance(statements[-1], ast.Expr)


def _texts(output):
    """The texts of an output, without pictures."""
    if output.output_type == "stream":
        yield output.text
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/"):
            yield re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+", "", content)


def main(study="runs/quick", sweep="runs/sweep-tiny"):
    """Refresh all notebooks of the repository on a study and a sweep."""
    given = {path: {"study": os.path.relpath(study, FOLDER)} for path in notebooks()}
    given[SWEEP] = {"sweep": os.path.relpath(sweep, FOLDER)}
    wrong = []
    for path, parameters in tqdm(given.items(), desc="notebooks", unit="notebook"):
        wrong += [f"{path.name}: {fault}" for fault in faults(refresh(path, parameters))]
    print("\n".join(wrong) if wrong else f"{len(given)} notebooks carry their outputs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
