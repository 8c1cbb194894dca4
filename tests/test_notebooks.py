"""Notebooks: each runs under papermill on the tiny study, and all keep the form that makes them readable."""

import ast
import base64
import io
import json
import random
import re
import shutil
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from sortlib import committed
from sortlib.notebooks import FOLDER, SWEEP, notebooks

NAMES = [path.stem for path in notebooks()]
ALL = [*NAMES, SWEEP.stem]


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def parameters(name):
    (cell,) = [cell for cell in read(name).cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def execute(name, output, **parameters):
    # As `sortlib study` runs them: the working directory is the notebooks' own.
    return papermill.execute_notebook(
        str(FOLDER / f"{name}.ipynb"), str(output), parameters=parameters, kernel_name="python3",
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
    executed = execute(name, tmp_path / f"{name}.ipynb", study=str(tiny_study.directory.resolve()))
    tables_and_figures(executed, name not in ("03-test", "04-rq1-validity"))


def test_runs_on_a_sweep(tiny_study, tmp_path):
    """The last notebook compares the points of a sweep, here one that a study of before stands for."""
    shutil.copytree(tiny_study.directory, tmp_path / "sweep" / "seed-0")
    point = {"settings": {"seed": 0}, "state": "done", "error": ""}
    failed = {"settings": {"seed": 1}, "state": "failed", "error": "no such <platform>"}
    found = {"sweep": {"name": "hand"}, "points": {"seed-0": point, "seed-1": failed}}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(found))
    executed = execute(SWEEP.stem, tmp_path / SWEEP.name, sweep=str(tmp_path / "sweep"))
    tables_and_figures(executed, True)
    assert "no such &lt;platform&gt;" in json.dumps(executed)


def tables_and_figures(executed, drawn):
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "text/html" in kinds
    assert ("image/png" in kinds) == drawn
    assert [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"] == []


def test_makes_a_study_that_is_missing(tmp_path):
    execute("02-record", tmp_path / "executed.ipynb", study=str(tmp_path / "tiny"))
    assert (tmp_path / "tiny" / "patterns.json").is_file()
    assert not (tmp_path / "tiny" / "cases.parquet").exists()  # no further than this notebook needs


@pytest.mark.parametrize("name", ALL)
class TestForm:
    def test_opens_with_question_and_time(self, name):
        first = read(name).cells[0]
        assert first.cell_type == "markdown"
        assert first.source.startswith("# ")
        assert "**Question.**" in first.source and "**Time.**" in first.source

    def test_parameters_are_documented(self, name):
        cell = parameters(name)
        lines = cell.source.splitlines()
        assert lines[0].startswith('sweep = "../runs/sweep-tiny"' if name == SWEEP.stem else 'study = "../runs/quick"')
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

    def test_carries_its_outputs_and_nothing_of_a_machine(self, name):
        assert committed.faults(FOLDER / f"{name}.ipynb") == []

    def test_cells_hold_no_logic(self, name):
        statements = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try, ast.With, ast.Lambda)
        found = [type(node).__name__ for cell in code_cells(name) for node in ast.walk(ast.parse(cell.source))
                 if isinstance(node, statements)]  # fmt: skip
        assert found == []

    def test_links_lead_somewhere(self, name):
        text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
        targets = re.findall(r"\]\(([^)#]+)\)", text)
        assert targets
        assert [t for t in targets if not t.startswith("http") and not Path(FOLDER, t).exists()] == []


def test_what_depends_on_the_machine_is_tagged():
    tagged = [(name, cell.source) for name in ALL for cell in code_cells(name)
              if committed.MACHINE in cell.metadata.get("tags", [])]  # fmt: skip
    assert ("00-tour", "sl.tables.show(sl.platforms())") in tagged and len(tagged) == 3


# ---- refreshing and checking ----


def picture():
    """A PNG of 3,600 random colours, as base64 text."""
    image, buffer = Image.frombytes("RGB", (60, 60), random.Random(0).randbytes(60 * 60 * 3)), io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture
def book(tmp_path):
    """A notebook in the form of the repository's, and ``write(outputs by number of the cell)`` of it."""
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell('study = "../runs/quick"', metadata={"tags": ["parameters"]}),
        new_code_cell("import sortlib as sl\n\nwork = sl.open_study(study)"),
        new_code_cell("work.models"),
        new_code_cell("work.manifest", metadata={"tags": ["machine"]}),
        new_code_cell("explorer = sl.explore(work)\nexplorer"),
    ]
    made = new_notebook(cells=cells, metadata=committed.KERNEL)
    path = tmp_path / "book.ipynb"
    nbformat.write(made, path)
    return path


def result(**data):
    return new_output(
        "execute_result", {kind.replace("_", "/"): value for kind, value in data.items()}, execution_count=7
    )


def test_refreshing_keeps_outputs_without_what_only_a_running_kernel_has(book, monkeypatch):
    page = f'<p>Case</p><img src="data:image/png;base64,{picture()}">'

    def papermill_like(path, output, parameters):
        executed = nbformat.read(path, as_version=4)
        executed.metadata.papermill = {"duration": 3.2, "input_path": "/home/me/book.ipynb"}
        executed.cells.insert(2, new_code_cell(f"study = {parameters['study']!r}", id="injected"))
        for cell in executed.cells:
            cell.metadata.papermill = {"duration": 0.1}
            if cell.cell_type == "code":
                cell.execution_count = 7
        executed.cells[4].outputs = [result(text_plain="['resnet18']")]
        executed.cells[5].outputs = [result(text_plain="{'processors': 2}")]
        view = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "Explorer"}
        executed.cells[6].outputs = [
            new_output("display_data", view),
            new_output("display_data", {"text/html": page, "image/png": picture(), "text/plain": "Case"}),
        ]
        nbformat.write(executed, output)

    monkeypatch.setattr(committed, "execute", papermill_like)
    committed.refresh(book, {"study": "../runs/other"})
    kept = nbformat.read(book, as_version=4)
    assert kept.metadata == committed.KERNEL and [dict(cell.metadata) for cell in kept.cells] == [
        {}, {"tags": ["parameters"]}, {}, {}, {"tags": ["machine"]}, {}]  # fmt: skip
    assert kept.cells[1].source == 'study = "../runs/quick"' and len(kept.cells) == 6
    assert kept.cells[3].outputs[0].data == {"text/plain": "['resnet18']"}
    assert kept.cells[4].outputs == []
    (shown,) = kept.cells[5].outputs
    assert set(shown.data) == {"text/html", "text/plain"} and len(shown.data["text/html"]) < len(page) / 2
    image = Image.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]+)', shown.data["text/html"])[1])))
    assert image.size == (60, 60) and image.mode == "P"
    assert "execution_count" not in json.dumps(kept).replace('"execution_count": null', "")
    assert committed.faults(book) == []
    before = book.read_bytes()
    committed.refresh(book, {"study": "../runs/other"})
    assert book.read_bytes() == before


def test_a_small_patch_of_a_kept_picture_keeps_its_colour():
    """The legend's red beside a large drawing in shades of yellow, grey and white."""
    image, buffer = Image.new("RGB", (400, 300), "white"), io.BytesIO()
    for step in range(256):
        image.paste((255, 255 - step // 3, step), (step, 0, step + 1, 200))
        image.paste((step,) * 3, (step, 210, step + 1, 290))
    image.paste("#c4161c", (300, 20, 310, 26))
    image.save(buffer, "PNG")
    kept = Image.open(io.BytesIO(base64.b64decode(committed._palette(base64.b64encode(buffer.getvalue()).decode()))))
    seen = kept.convert("RGB").getpixel((305, 23))
    assert max(abs(one - other) for one, other in zip(seen, (0xC4, 0x16, 0x1C), strict=True)) < 12


@pytest.mark.parametrize(
    ("cell", "change", "said"),
    [
        (3, {"outputs": []}, "shows something, but no output is kept"),
        (4, {"outputs": [result(text_plain="2")]}, "keeps an output although it is tagged 'machine'"),
        (3, {"execution_count": 4}, "has a number of execution"),
        (3, {"metadata": {"papermill": {}}}, "holds metadata papermill"),
        (3, {"outputs": [result(text_plain="Study('/home/me/runs/quick')")]}, "holds an absolute path: '/home/'"),
        (3, {"outputs": [result(text_html="<td>lib/site-packages/torch</td>")]}, "holds an absolute path"),
        (3, {"outputs": [result(text_plain="<Thing at 0x7f00aa12bc>")]}, "holds an address in memory: 'at 0x7f"),
        (3, {"outputs": [new_output("stream", text="run: 3%|  | 1/8 [00:02<00:14]")]}, "holds a progress bar"),
        (3, {"outputs": [new_output("stream", text="took 3.25 ms")]}, "holds a time: '3.25 ms'"),
        (3, {"outputs": [new_output("stream", name="stderr", text="warning")]}, "keeps an error"),
        (3, {"outputs": [new_output("error", ename="E", evalue="", traceback=[])]}, "keeps an error"),
        (3, {"outputs": [result(image_png="A" * 500_000)]}, "bytes; 500,000 at most"),
        (3, {"source": "work.models\n" * 20}, "of its code cells have above 10 lines"),
    ],
)  # fmt: skip
def test_each_fault_is_found(book, cell, change, said):
    made = nbformat.read(book, as_version=4)
    for number in (3, 5):
        made.cells[number].outputs = [new_output("display_data", {"text/plain": "shown"})]
    nbformat.write(made, book)
    assert committed.faults(book) == []
    made.cells[cell].update(nbformat.from_dict(change))
    nbformat.write(made, book)
    (fault,) = committed.faults(book)
    assert said in fault


def test_long_cells_and_metadata_of_a_kernel_are_found(book):
    made = nbformat.read(book, as_version=4)
    made.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source, cell.outputs = "x = 1\n" * 4 + "y = 2", []
    nbformat.write(made, book)
    assert committed.faults(book) == ["holds metadata of a kernel or a machine",
                                      "the median of its code cells is 5 lines; 3 at most"]  # fmt: skip
