"""Notebooks: each runs under papermill on the tiny study, and all keep the form that makes them readable."""

import ast
import re
import statistics
from pathlib import Path

import nbformat
import papermill
import pytest

from sortlib.notebooks import FOLDER, notebooks

NAMES = [path.stem for path in notebooks()]


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def parameters(name):
    (cell,) = [cell for cell in read(name).cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def execute(name, study, output):
    # As `sortlib study` runs them: the working directory is the notebooks' own.
    return papermill.execute_notebook(
        str(FOLDER / f"{name}.ipynb"), str(output), parameters={"study": str(study)}, kernel_name="python3",
        cwd=str(FOLDER), progress_bar=False,
    )  # fmt: skip


def test_all_notebooks_are_there_in_reading_order():
    assert NAMES == [
        "00-tour", "01-extract-and-mine", "02-record", "03-test", "04-rq1-validity", "05-rq2-bugs",
        "06-rq3-interactions", "07-figure-14", "08-explore",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_runs(name, tiny_study, tmp_path):
    """Papermill raises at the first error; beyond that, tables and figures must really be shown."""
    executed = execute(name, tiny_study.directory.resolve(), tmp_path / f"{name}.ipynb")
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "text/html" in kinds
    if name not in ("02-record", "03-test", "04-rq1-validity", "05-rq2-bugs"):
        assert "image/png" in kinds
    assert [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"] == []


def test_makes_a_study_that_is_missing(tmp_path):
    execute("02-record", tmp_path / "tiny", tmp_path / "executed.ipynb")
    assert (tmp_path / "tiny" / "patterns.json").is_file()
    assert not (tmp_path / "tiny" / "cases.parquet").exists()  # no further than this notebook needs


@pytest.mark.parametrize("name", NAMES)
class TestForm:
    def test_opens_with_question_and_time(self, name):
        first = read(name).cells[0]
        assert first.cell_type == "markdown"
        assert first.source.startswith("# ")
        assert "**Question.**" in first.source and "**Time.**" in first.source

    def test_parameters_are_documented(self, name):
        cell = parameters(name)
        lines = cell.source.splitlines()
        assert lines[0].startswith('study = "../runs/quick"')
        cells = read(name).cells
        prose = cells[next(k for k, c in enumerate(cells) if c.id == cell.id) - 1].source
        for line in lines:
            variable = re.match(r"(\w+) = .+  # \w+: \S+", line)
            assert variable, f"{line!r} has no '# type: meaning'"
            assert f"`{variable[1]}`" in prose

    def test_prose_stands_before_every_code_cell(self, name):
        cells = read(name).cells
        lonely = [c.source for before, c in zip(cells, cells[1:], strict=False)
                  if c.cell_type == "code" and before.cell_type != "markdown"]  # fmt: skip
        assert lonely == []

    def test_cells_are_short(self, name):
        lengths = [len(cell.source.splitlines()) for cell in code_cells(name)]
        assert statistics.median(lengths) <= 3
        assert sum(length <= 10 for length in lengths) >= 0.9 * len(lengths)

    def test_cells_hold_no_logic(self, name):
        statements = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try, ast.With, ast.Lambda)
        found = [type(node).__name__ for cell in code_cells(name) for node in ast.walk(ast.parse(cell.source))
                 if isinstance(node, statements)]  # fmt: skip
        assert found == []

    def test_nothing_of_a_machine_is_kept(self, name):
        book = read(name)
        assert set(book.metadata) == {"kernelspec", "language_info"}
        assert book.metadata["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
        assert book.metadata["language_info"] == {"name": "python"}
        for cell in code_cells(name):
            assert cell.outputs == [] and cell.execution_count is None
            assert set(cell.metadata) <= {"tags"}
        text = (FOLDER / f"{name}.ipynb").read_text()
        assert not re.search(r"/home/|/Users/|/tmp/|site-packages|[A-Z]:\\\\", text)

    def test_links_lead_somewhere(self, name):
        text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
        targets = re.findall(r"\]\(([^)#]+)\)", text)
        assert targets
        assert [t for t in targets if not t.startswith("http") and not Path(FOLDER, t).exists()] == []
