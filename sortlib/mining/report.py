"""What ``sortlib mine`` prints about a set of patterns."""

from __future__ import annotations

from pathlib import Path

from sortlib.errors import SortError
from sortlib.graph import ApiGraph
from sortlib.mining import stats
from sortlib.mining.search import mine
from sortlib.study import Study

SWEEP = (2, 3, 5, 8, 12, 20)


def load_graphs(source) -> list[ApiGraph]:
    """The graphs of a study, or of a directory of graph files.

    Raises
    ------
    SortError
        There are none.
    """
    source = Path(source)
    folder = source / "graphs" if (source / "graphs").is_dir() else source
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SortError(f"{source}: no graphs there; 'sortlib trace ZOO --out {source}' writes them")
    try:
        return [ApiGraph.load(file) for file in files]
    except (ValueError, KeyError, TypeError) as error:
        raise SortError(f"{folder}: not every .json file is a graph ({type(error).__name__}: {error})") from None


def settings_of(source) -> dict:
    """The support and largest size of the study in a directory; the paper's 5 and 7 where it is no study."""
    if not (Path(source) / "manifest.json").is_file():
        return {"min_support": 5, "max_nodes": 7}
    mining = Study(source).config.mining
    return {"min_support": mining.min_support, "max_nodes": mining.max_nodes}


def text(graphs, min_support, max_nodes, keep, top, sweep, **options) -> str:
    """Mine and describe, with a progress bar; see ``sortlib mine --help``."""
    patterns = mine(graphs, min_support, max_nodes, keep, progress=True, **options)
    if not patterns:
        return patterns.note
    parts = [
        f"{len(patterns)} patterns ({keep}) of 2 to {max_nodes} calls, "
        f"each in at least {min_support} of {len(graphs)} graphs",
        patterns.note,
        "By size:\n" + stats.by_size(patterns).to_string(),
        "Beside the paper's set (all out-trees, since its miner cannot close a join):\n"
        + stats.against_paper(patterns).to_string(),
        "All, closed and maximal:\n" + stats.by_kind(graphs, min_support, max_nodes, **options).to_string(),
        "Share of all API calls that lie in a pattern, by the pattern's size:\n"
        + stats.call_coverage(patterns).to_string(),
        f"The {top} in most graphs:\n" + stats.most_frequent(patterns, top).to_string(index=False),
    ]
    if sweep:
        supports = [support for support in SWEEP if support <= len(graphs)]
        table = stats.threshold_sweep(graphs, supports, max_nodes, **options)
        parts.append("Other thresholds:\n" + table.to_string())
    return "\n\n".join(filter(None, parts))
