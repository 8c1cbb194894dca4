"""Executing the numbered notebooks on a study with papermill."""

from __future__ import annotations

import hashlib
import json
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tqdm.auto import tqdm

from sortlib.errors import SortError
from sortlib.study import Study, fingerprint

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
SWEEP = FOLDER / "09-sweep.ipynb"  # reads a sweep, all others a study


def notebooks() -> list[Path]:
    """The repository's notebooks on a study, in reading order."""
    return [path for path in sorted(FOLDER.glob("[0-9][0-9]-*.ipynb")) if path != SWEEP]


def run_notebooks(study: Study, progress: bool = True, kernels: int = 2, names=None) -> list[Path]:
    """Execute the notebooks on the study, into its folder ``notebooks``; those still up to date are skipped.

    Parameters
    ----------
    study : a complete study, so that no two notebooks compute the same stage.
    kernels : notebooks that run at the same time.
    names : of the notebooks, without ``.ipynb``; all of them if not given.

    Raises
    ------
    SortError
        A notebook failed: names it, the error and the executed copy that shows it. The others are finished first.
    """
    chosen = [path for path in notebooks() if names is None or path.stem in names]
    done = dict(study.stage("notebooks").get("done", {}))
    inputs = fingerprint(study.stage("generate"), study.stage("baselines"), study.stage("run"), study.stage("rq4"),
                         study.manifest["config"], study.judged_by)  # fmt: skip
    marks = {path.name: fingerprint(inputs, _sources(path)) for path in chosen}
    outputs = {path.name: study.path("notebooks", path.name) for path in chosen}
    todo = [p for p in chosen if done.get(p.name) != marks[p.name] or not outputs[p.name].is_file()]
    failures = []
    # Processes, since papermill changes the working directory while it runs a notebook.
    with (
        ProcessPoolExecutor(kernels, mp_context=get_context("spawn")) as pool,
        tqdm(
            total=len(marks), initial=len(marks) - len(todo), desc="notebooks", unit="notebook", disable=not progress
        ) as bar,
    ):
        directory = str(study.directory.resolve())
        running = {pool.submit(execute, path, outputs[path.name].resolve(), {"study": directory}): path
                   for path in todo}  # fmt: skip
        for future in _until_interrupted(pool, running):
            path = running[future]
            bar.set_description(f"notebooks {path.stem}")
            try:
                future.result()
                done[path.name] = marks[path.name]
            except Exception as error:
                failures.append(f"{path.name}: {_last_line(error)} (see {outputs[path.name]})")
            bar.update()
            study.note("notebooks", done=done)
    if failures:
        raise SortError("; ".join(sorted(failures)))
    return list(outputs.values())


def _until_interrupted(pool, running):
    """Finished notebooks as they come; Ctrl-C drops those that have not begun."""
    try:
        yield from as_completed(running)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _sources(path) -> str:
    """A hash of what a notebook says, whatever outputs it carries."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


def execute(path, output, parameters):
    """Execute one notebook with papermill, in the notebooks' own folder.

    Parameters
    ----------
    path, output : of the notebook and of its executed copy.
    parameters : values for its cell of parameters.
    """
    import papermill

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # papermill and nbformat warn about their own future changes
        papermill.execute_notebook(
            str(path), str(output), parameters=parameters, kernel_name="python3", cwd=str(FOLDER),
            progress_bar=False, extra_arguments=["--log-level=ERROR"],
        )  # fmt: skip


def _last_line(error) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
