"""The command line: ``sortlib --help`` explains itself."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sortlib.arguments import LARGEST_SEED, whole
from sortlib.errors import SortError, choices
from sortlib.runner import command as run_command
from sortlib.threads import leave_behind

_STUDIES = "Study file, or the name of a bundled one: quick, quick-uniform, paper, tiny."
_SWEEPS = "Sweep file, or the name of a bundled one (tiny, quick): run a grid of settings, one folder a point."
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
    status = 1
    try:
        app()
    except SortError as error:
        print(f"sortlib: {error}", file=sys.stderr)
        status = 2
        sys.exit(status)
    except SystemExit as end:  # typer turns an interrupt into this status
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status == 130:
            print("sortlib: interrupted; the same command goes on from here", file=sys.stderr)
        raise
    finally:
        leave_behind(status)


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
    file: Annotated[str | None, typer.Argument(help=_STUDIES)] = None,
    sweep: Annotated[str | None, typer.Option(help=_SWEEPS)] = None,
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
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler, such as tcp://head:8786, to run on.")] = None,
    resource: Annotated[
        list[str] | None, typer.Option(help="What each task needs of a Dask worker: GPU=1; may be repeated.")
    ] = None,
    upto: Annotated[str, typer.Option(help="Last stage: trace, mine, generate, run or tables.")] = "tables",
    notebooks: Annotated[bool, typer.Option(help="Execute the notebooks and write the report.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
):
    """Run a study from models to report. The same command resumes an interrupted one."""
    from sortlib.cluster import connect, resources_of
    from sortlib.pipeline import check_ahead, complete
    from sortlib.study import Study, load_config, with_methods

    plan = _planned(file, sweep, upto)
    config = load_config(plan.study if plan else file)
    chosen = {k: v for k, v in {"reference": reference, "candidate": candidate}.items() if v}
    config = config.model_copy(update={"platforms": config.platforms.model_copy(update=chosen)})
    if seed is not None:
        config = config.model_copy(update={"seed": whole(seed, "--seed", 0, LARGEST_SEED)})
    folders = {"constraints": constraints, "programs": programs}
    folders = {name: str(folder.resolve()) for name, folder in folders.items() if folder}
    config = with_methods(config, method, {**folders, "model": model})
    _used(config, {"--constraints": constraints, "--model": model, "--programs": programs})
    if plan:
        _fixed(plan, {"--reference": reference, "--candidate": candidate, "--seed": seed})
    if resource and not scheduler:
        raise SortError("--resource is for a cluster: give --scheduler too")
    if plan:
        from sortlib.sweep import finish as finish_sweep
        from sortlib.sweep import run_sweep

        directory = out or Path("runs") / f"sweep-{plan.name}"
        with connect(scheduler, resources_of(resource)) if scheduler else nullcontext() as executor:
            finish_sweep(run_sweep(plan, directory, config, not quiet, executor, notebooks))
        return
    check_ahead(config)
    opened = Study.create(config, out or Path("runs") / config.name)
    with connect(scheduler, resources_of(resource)) if scheduler else nullcontext() as executor:
        complete(opened, upto, progress=not quiet, executor=executor)
    if upto == "tables":
        finish(opened, notebooks, not quiet)


_OF_METHOD = {"--constraints": "docter", "--model": "titanfuzz", "--programs": "titanfuzz"}


def _used(config, given):
    """Refuse an option of a method that is not among the study's."""
    for option, value in given.items():
        if value and _OF_METHOD[option] not in config.methods:
            method, known = _OF_METHOD[option], choices(config.methods) or "none"
            raise SortError(f"{option} is for {method}, which is not among the methods of this study ({known}); "
                            f"give --method {method} too")  # fmt: skip


_IN_GRID = {"--reference": "platforms.reference", "--candidate": "platforms.candidate", "--seed": "seed"}


def _fixed(plan, given):
    """Refuse an option for a setting that the points of a sweep set themselves."""
    for option, value in given.items():
        if value is not None and _IN_GRID[option] in plan.grid:
            raise SortError(f"{option}: each point of the sweep {plan.name} sets {_IN_GRID[option]} itself")


def _planned(file, sweep, upto):
    """The sweep that is asked for, if one is."""
    if sweep is None:
        if file is None:
            raise SortError(f"name a study, or a sweep with --sweep. {_STUDIES}")
        return None
    if file is not None:
        raise SortError(f"{file}: name a study or a sweep, not both; a sweep's file names its study (key 'study')")
    if upto != "tables":
        raise SortError("--upto is for a single study; a sweep runs every point to the end")
    from sortlib.sweep import load_sweep

    return load_sweep(sweep)


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
    _print_worst(opened)


def _print_worst(opened, count=5):
    """The worst findings; where there is none, the largest differences, which are explained."""
    from sortlib.grouping import findings

    found = findings(opened)
    if len(found):
        print("\nThe most serious findings:" if len(found) > count else "\nFindings:")
    else:
        print("No call accuses a platform.\n\nThe largest differences, none of which is a finding:")
    shown = (found if len(found) else opened.findings).head(count).to_dict("records")
    for place, row in enumerate(shown, 1):
        print(f"{place}. {row['verdict']} {row['api']} ({row['calls']} calls, {row['reference']} against "
              f"{row['candidate']}), worst in case {row['worst_case']}: {row['reason']}")  # fmt: skip
    if len(found):
        print(f"\nA script that shows the first one: sortlib reproduce {opened.directory} {shown[0]['worst_case']} "
              "--minimize")  # fmt: skip


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
    for option, names in (("--include", include), ("--exclude", exclude)):
        _known_apis(option, names or (), graphs)
    min_support, max_nodes = min_support or default["min_support"], max_nodes or default["max_nodes"]
    options = {"include": include or (), "exclude": exclude or (), "workers": workers}
    print(mining_report.text(graphs, min_support, max_nodes, keep, top, sweep, **options))


def _known_apis(option, names, graphs):
    """Refuse an API that none of the graphs calls: no pattern could hold it, and leaving it out leaves out nothing."""
    from sortlib.config import suggestion

    known = {node.api for graph in graphs for node in graph.nodes}
    for name in names:
        if name not in known:
            raise SortError(f"mine: {option} {name}: none of the {len(graphs)} graphs calls it"
                            f"{suggestion(name, known) or ';'} they call {choices(known, len(known))}")  # fmt: skip


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Directory of a complete study.")]):
    """Write the report of a study again."""
    from sortlib.report import write_report
    from sortlib.study import Study

    print(f"Report: {write_report(Study(directory))}")


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
             help=run_command.SUMMARY)  # fmt: skip
def run(context: typer.Context):  # noqa: D103 - reads its own arguments, since it also works without typer
    run_command.main(context.args)


@app.command()
def platforms(
    more: Annotated[
        list[str] | None, typer.Argument(help="Further platforms, such as cpu@/opt/torch-2.10/bin/python.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="Study file whose own platforms are listed too.")] = None,
    worth: Annotated[bool, typer.Option("--worth", help="Measure which of the 15 APIs differ from cpu.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
):
    """List the platforms: which this machine has, what the others lack, and what each setting is worth."""
    from sortlib.platform import platforms as table
    from sortlib.study import load_config
    from sortlib.worth import describe

    own = load_config(study).platforms.own if study else None
    rows = table(*(more or ()), worth=worth, own=own, progress=not quiet)
    width = rows["platform"].str.len().max()
    for row in rows.to_dict("records"):
        torch = f", torch {row['torch']}" if "; run by " in row["what"] else ""
        state = f"available{torch}" if row["available"] else f"missing: {row['missing']}"
        print(f"{row['platform']:<{width}}  {row['what']} [{state}]")
        if worth and row["available"]:
            for line in describe(row):
                print(f"{'':<{width}}    {line}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="YAML list of entries with id, inputs and call; it is code and is run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a line per entry.")] = False,
    reproduce: Annotated[
        Path | None,
        typer.Option(help="Folder for a stand-alone script and an issue text of each entry that accuses a platform."),
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="YAML list of own thresholds; 'sortlib thresholds --help' has the form.")
    ] = None,
):
    """Judge single expressions on two platforms. The exit status is 1 where an expected verdict is not met, and 2 where
    an expression fails; the other entries are judged all the same."""
    import json

    from sortlib.checking import check_file

    results = check_file(file, thresholds, reproduce)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        width = max(len(str(result["id"])) for result in results)
        for result in results:
            left_out = next((kind for kind in ("skipped", "error") if result[kind]), "")
            verdict = f"{left_out}: {result['reason']}" if left_out else (
                f"{result['evidence']} (paper: {result['paper']}): {result['reason']}")  # fmt: skip
            wrong = f" [expected {result['expected']}]" if result["ok"] is False and not left_out else ""
            print(f"{result['id']:<{width}}  {verdict}{wrong}")
            if result.get("script"):
                print(f"{'':<{width}}  {result['script']}: {result['reproducer']}")
    if failed := [str(result["id"]) for result in results if result["error"]]:
        raise SortError(f"{file}: {', '.join(failed)}: not judged, since the expression fails; see above")
    if any(result["ok"] is False for result in results):
        raise typer.Exit(1)


@app.command()
def reproduce(
    directory: Annotated[Path, typer.Argument(help="Directory of a study whose cases were run.")],
    case: Annotated[str, typer.Argument(help="A case, or the id of a finding.")],
    out: Annotated[Path | None, typer.Option(help="The script; findings/<finding>.py in the study by default.")] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Find the smallest such case first.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="Time for --minimize.")] = 60,
    node: Annotated[int | None, typer.Option(min=0, help="Call of the case; the most serious one by default.")] = None,
    rule: Annotated[str, typer.Option(help="Rule that finds it: evidence or paper.")] = "evidence",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
):
    """Write a stand-alone script and an issue text for a finding. The exit status is 1 where the script, run here, does
    not show the difference."""
    from sortlib.reproducing.making import reproduce as make
    from sortlib.study import Study

    made = make(Study(directory), case, out, minimize=minimize, seconds=seconds, node=node, rule=rule,
                progress=not quiet)  # fmt: skip
    print(made.output)
    print(f"\nScript: {made.script} ({made.state})\nIssue text: {made.issue}")
    if made.gone:
        print(f"The difference is gone {'; or '.join(made.gone)}.")
    if not made.reproduces:
        raise typer.Exit(1)


@app.command()
def faults(
    directory: Annotated[Path | None, typer.Argument(help="Directory of a study.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="Only this fault; may be repeated. All by default.")] = None,
    budget: Annotated[int, typer.Option(min=1, help="Executed calls of each method and API.")] = 60,
    method: Annotated[list[str] | None, typer.Option(help="Only compare with this method; may be repeated.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
):
    """Measure which known faults of the device simdev each method finds. The same command resumes an interrupted
    one."""
    if listed:
        from sortlib.simdev import faults as known

        for row in known().to_dict("records"):
            print(f"{row['fault']:<32}{row['verdict']:<11}{row['what']}")
        return
    if directory is None:
        raise SortError("name the directory of a study, or give --list")
    from sortlib.pipeline import complete
    from sortlib.seeded_faults import seeded_faults, summary
    from sortlib.study import Study

    opened = complete(Study(directory), "mine", progress=not quiet)
    results = seeded_faults(opened, fault, budget, method, progress=not quiet)
    print(summary(results).to_string(index=False))
    without = {}
    for (name, api), reason in results.attrs["absent"].items():
        without.setdefault((name, reason), []).append(api)
    for (name, reason), apis in without.items():
        print(f"{name}: no attempt on {', '.join(apis)}: {reason}")
    table = opened.directory / "tables" / "seeded_faults.csv"
    if "fingerprint" in opened.stage("tables"):
        complete(opened, "tables", progress=not quiet)
        print(f"\nTable: {table}; 'sortlib study' brings it into the notebooks and the report")
    else:
        print(f"\n{table} comes with the rest of the study; {opened.directory / 'rq4'} keeps what was run")


@app.command()
def thresholds(
    file: Annotated[Path | None, typer.Argument(help="YAML list of rows that change what is allowed.")] = None,
):
    """Show what rounding explains, by API family and dtype, and where each number comes from.

    A row of the file has api or family, source, and dtype where it holds for one only; and bounds (multiples of the
    derived bound), ulp (units in the last place of the output's largest value that are rounding in any case) or
    clearly_worse (times the other side's error). For example:
    - {api: gelu, dtype: bfloat16, bounds: 2, source: table 3 of the device's manual}
    """
    from sortlib.thresholds import Table

    rows = (Table.read(file) if file else Table()).show()
    print(f"{'':<10}{'dtype':<15}{'u':<11}{'bounds':<8}{'ulp':<6}{'worse':<7}bound in u (source)")
    for row in rows:
        unit = f"{row['u']:.3g}" if row["u"] else ""
        print(f"{row['api'] or row['family']:<10}{row['dtype']:<15}{unit:<11}{row['bounds']:<8g}{row['ulp']:<6g}"
              f"{row['clearly_worse']:<7g}{row['bound']} ({row['source']})")  # fmt: skip


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
    train: Annotated[bool, typer.Option("--train", help="A training step, forward and backward, with gradients.")] = (
        False
    ),
    records: Annotated[bool, typer.Option("--records", help="Write the records to --out too, as Parquet.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
):
    """Trace the models of a zoo and count calls, edges and APIs against the paper's statistics. The exit status is 1
    where a model could not be traced or its replay differs."""
    from sortlib.zoo_tracing import trace_zoo

    traces = trace_zoo(name, model, out, not quiet, verify, fake, train, records)
    if len(traces.table):
        print(traces.table.to_string(index=False))
        calls = traces.table["calls"]
        print(f"\n{len(calls)} models: {calls.mean():.0f} calls on average, {calls.min()} to {calls.max()} "
              "(the paper's 49: 339, 29 to 1143)")  # fmt: skip
        print(f"{len(traces.apis)} APIs, most frequent first: {', '.join(traces.apis)}")
    for replay in traces.replays:
        print(replay.describe())
    for failure in traces.failures.values():
        print(f"sortlib: {failure}", file=sys.stderr)
    if traces.failures or not all(replay.ok for replay in traces.replays):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
