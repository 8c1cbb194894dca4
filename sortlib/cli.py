"""The command line: ``sortlib --help`` explains itself."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from sortlib.errors import SortError

_STUDIES = "Study file, or the name of a bundled one: quick, quick-uniform, paper, tiny."
_ZOOS = "Zoo file, or the name of a bundled one: quick, paper, tiny, torchvision, timm, transformers."

app = typer.Typer(
    help="Find numerical bugs in PyTorch and its backends with frequent API subgraphs of real models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main():
    """Entry point: a user's mistake is one line on the error stream and exit status 2, an interrupt is 130."""
    warnings.filterwarnings("ignore")
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        app()
    except SortError as error:
        print(f"sortlib: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:  # typer turns an interrupt into this status
        if end.code == 130:
            print("sortlib: interrupted; the same command goes on from here", file=sys.stderr)
        raise


def _version(wanted: bool):
    if wanted:
        import sortlib

        print(f"sortlib {sortlib.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
):
    """Find numerical bugs in PyTorch and its backends with frequent API subgraphs of real models."""


@app.command()
def study(
    file: Annotated[str, typer.Argument(help=_STUDIES)],
    out: Annotated[Path | None, typer.Option(help="Directory of the study; runs/<name> by default.")] = None,
    reference: Annotated[str | None, typer.Option(help="Platform taken as reference instead of the file's.")] = None,
    candidate: Annotated[str | None, typer.Option(help="Platform under test instead of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed instead of the file's.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to compare with, instead of the file's; may be repeated: single-api, freefuzz, "
            "deeprel, docter, acetest, titanfuzz."
        ),
    ] = None,
    constraints: Annotated[Path | None, typer.Option(help="Folder of DocTer's constraint files.")] = None,
    model: Annotated[str | None, typer.Option(help="Language model of TitanFuzz, as 'llm models' lists it.")] = None,
    programs: Annotated[Path | None, typer.Option(help="Folder of programs that TitanFuzz runs instead.")] = None,
    upto: Annotated[str, typer.Option(help="Last stage: trace, mine, generate, run or tables.")] = "tables",
    notebooks: Annotated[bool, typer.Option(help="Execute the notebooks and write the report.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
):
    """Run a study from models to report. The same command resumes an interrupted one."""
    from sortlib.pipeline import check_ahead, complete
    from sortlib.study import Study, load_config, with_methods

    config = load_config(file)
    chosen = {k: v for k, v in {"reference": reference, "candidate": candidate}.items() if v}
    config = config.model_copy(update={"platforms": config.platforms.model_copy(update=chosen)})
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    folders = {"constraints": constraints, "programs": programs}
    folders = {name: str(folder.resolve()) for name, folder in folders.items() if folder}
    config = with_methods(config, method, {**folders, "model": model})
    check_ahead(config)
    opened = Study.create(config, out or Path("runs") / config.name)
    complete(opened, upto, progress=not quiet)
    if upto == "tables":
        finish(opened, notebooks, not quiet)


def finish(opened, notebooks, progress):
    """Notebooks, report, and the closing lines of a study."""
    import pandas as pd

    from sortlib.notebooks import run_notebooks
    from sortlib.report import write_report

    if notebooks:
        run_notebooks(opened, progress)
    report = write_report(opened)
    print(f"\nReport: {report}")
    if notebooks:
        print(f"Notebooks: {opened.directory / 'notebooks'}")
    judged = pd.concat([opened.judged, opened.judged_single])
    counts = ", ".join(f"{number} {verdict}" for verdict, number in judged["evidence"].value_counts().items())
    print(f"\n{judged['case'].nunique()} cases, {len(judged)} calls: {counts}; "
          f"{(judged['paper'] == 'fail').sum()} fail the paper's rule")  # fmt: skip
    for method, facts in opened.stage("baselines").get("methods", {}).items():
        if facts["missing"]:
            print(f"Not compared: {method} needs {facts['missing']}")
    if set(judged["evidence"]) <= {"identical", "rounding", "amplified"}:
        print("No call differs by more than rounding explains.")
    print("\nThe most interesting findings:")
    for place, row in enumerate(opened.findings.head(5).to_dict("records"), 1):
        print(f"{place}. {row['verdict']} {row['api']} ({row['calls']} calls, {row['reference']} against "
              f"{row['candidate']}), worst in case {row['worst_case']}: {row['reason']}")  # fmt: skip


@app.command()
def mine(
    source: Annotated[Path, typer.Argument(help="Directory of a study, or of graphs from 'sortlib trace --out'.")],
    min_support: Annotated[
        int | None, typer.Option(min=1, help="Graphs that hold a pattern; the study's, or 5.")
    ] = None,
    max_nodes: Annotated[int | None, typer.Option(min=2, help="Largest pattern; the study's, or 7.")] = None,
    keep: Annotated[str, typer.Option(help="all, closed or maximal.")] = "all",
    include: Annotated[list[str] | None, typer.Option(help="API that each pattern must hold; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="API that no pattern may hold; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    top: Annotated[int, typer.Option(min=0, help="How many of the most frequent patterns to show.")] = 20,
    sweep: Annotated[bool, typer.Option("--sweep", help="Also show what other thresholds give.")] = False,
):
    """Mine graphs and show the patterns: sizes, supports, coverage, and the paper's set beside them."""
    from sortlib.mining import report as mining_report

    graphs = mining_report.load_graphs(source)
    default = mining_report.settings_of(source)
    min_support, max_nodes = min_support or default["min_support"], max_nodes or default["max_nodes"]
    options = {"include": include or (), "exclude": exclude or (), "workers": workers}
    print(mining_report.text(graphs, min_support, max_nodes, keep, top, sweep, **options))


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Directory of a complete study.")]):
    """Write the report of a study again."""
    from sortlib.report import write_report
    from sortlib.study import Study

    print(f"Report: {write_report(Study(directory))}")


@app.command()
def platforms():
    """List the platforms: which this machine has, and what the others lack."""
    from sortlib.platform import platforms as table

    rows = table()
    width = rows["platform"].str.len().max()
    for row in rows.to_dict("records"):
        state = "available" if row["available"] else f"missing: {row['missing']}"
        print(f"{row['platform']:<{width}}  {row['what']} [{state}]")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="YAML list of entries with id, inputs and call; it is code and is run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a line per entry.")] = False,
):
    """Judge single expressions on two platforms. The exit status is 1 where an expected verdict is not met."""
    import json

    from sortlib.checking import check_file

    results = check_file(file)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        width = max(len(str(result["id"])) for result in results)
        for result in results:
            verdict = f"skipped: {result['skipped']}" if result["skipped"] else (
                f"{result['evidence']} (paper: {result['paper']}): {result['reason']}")  # fmt: skip
            wrong = f" [expected {result['expected']}]" if result["ok"] is False else ""
            print(f"{result['id']:<{width}}  {verdict}{wrong}")
    if any(result["ok"] is False for result in results):
        raise typer.Exit(1)


@app.command()
def zoo(
    name: Annotated[
        str,
        typer.Argument(help=_ZOOS),
    ],
):
    """List the models of a zoo."""
    from sortlib.zoo import load_zoo

    loaded = load_zoo(name)
    width = max(len(entry.name) for entry in loaded.models)
    for entry in loaded.models:
        print(f"{entry.name:<{width}}  {entry.source}: {entry.model}")
    print(f"{len(loaded.models)} models")


@app.command()
def trace(
    name: Annotated[
        str,
        typer.Argument(help=_ZOOS),
    ],
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the graphs as JSON.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Replay each trace and compare all bits.")] = False,
    fake: Annotated[bool, typer.Option("--fake", help="Capture without computing, for models too big to run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
):
    """Trace the models of a zoo and count calls, edges and APIs against the paper's statistics."""
    from sortlib.pipeline import trace_zoo

    table, apis, replays = trace_zoo(name, model, out, not quiet, verify, fake)
    print(table.to_string(index=False))
    calls = table["calls"]
    print(f"\n{len(table)} models: {calls.mean():.0f} calls on average, {calls.min()} to {calls.max()} "
          "(the paper's 49: 339, 29 to 1143)")  # fmt: skip
    print(f"{len(apis)} APIs, most frequent first: {', '.join(apis)}")
    for replay in replays:
        print(replay.describe())
    if not all(replay.ok for replay in replays):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
