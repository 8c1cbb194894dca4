"""Speed of the miner, beside its peers: ``python tests/benchmarks/mining.py --graphs runs/paper/graphs``.

Prints one JSON line a figure: name, value, bar (null where none is set), ok, peer, note. Without ``--graphs`` (a folder
of graphs as ``ApiGraph.save`` writes them) 49 graphs made by rule are mined. ``pip install fast-gspan==0.1.3
gspan-mining==0.2.3`` first for the figures beside peers; they are left out, with a line that says so, where a peer is
missing. Times are the best of three runs, except those of a minute and more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import model_graphs

import sortlib as sl

sys.path.insert(0, str(Path(__file__).parents[1]))
SUPPORT, NODES = 5, 7


def figure(name, value, bar=None, ok=True, peer=None, note=""):
    value = round(value, 4) if isinstance(value, float) else value
    line = {"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": peer, "note": note}
    print(json.dumps(line), flush=True)


def best(call, repeats=3):
    """(seconds, result) of the fastest of some runs."""
    runs = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        runs.append((time.perf_counter() - begin, result))
    return min(runs, key=lambda run: run[0])


def beside_fast_gspan(graphs):
    from brute_force import form_of
    from mining_peers import fast_gspan

    largest = max(len(p.nodes) + len(p.edges) for p in sl.mine(graphs, SUPPORT, NODES))
    for limit, which in ((largest, "all patterns"), (2 * NODES - 1, "trees and what fits beside them")):
        runs = []
        for _ in range(3):  # in turn, so that other load on the machine meets both
            runs.append(
                (best(lambda: sl.mine(graphs, SUPPORT, NODES)), fast_gspan(graphs, SUPPORT, NODES, max_cut=limit))
            )
        seconds, patterns = min((ours for ours, _ in runs), key=lambda run: run[0])
        peer, found = min((theirs for _, theirs in runs), key=lambda run: run[0])
        gain = peer / seconds
        note = f"{seconds:.3f} s against {peer:.3f} s; gBolt on subdivided graphs of up to {limit} nodes: {which}"
        figure(f"times faster than fast-gspan, limit {limit}", gain, 3, gain >= 3, "fast-gspan", note)
        theirs = {form_of(nodes, edges): support for nodes, edges, support in found}
        ours = {form_of(p.nodes, p.edges): p.support for p in patterns if len(p.nodes) + len(p.edges) <= limit}
        differ = len(theirs.items() ^ ours.items())
        name = f"patterns or supports that differ from fast-gspan's, limit {limit}"
        figure(name, differ, 0, differ == 0, "fast-gspan", f"{len(ours)} patterns")


def beside_gspan_mining(graphs, patience):
    from mining_peers import gspan_mining

    finished = None
    for size in range(2, NODES + 1):
        seconds, _count = gspan_mining(graphs, SUPPORT, size, patience)
        if seconds is None:
            note = f"not finished after {patience} s"
            figure(f"seconds of gspan-mining, {size} nodes, subdivided", None, None, True, "gspan-mining", note)
            break
        finished = size, seconds
    if finished:
        size, seconds = finished
        ours = best(lambda: sl.mine(graphs, SUPPORT, size))[0]
        gain = seconds / ours
        note = f"{ours:.3f} s against {seconds:.1f} s; the largest size that it finished in {patience} s"
        figure(f"times faster than gspan-mining, {size} nodes", gain, 100, gain >= 100, "gspan-mining", note)
    seconds, count = gspan_mining(graphs, SUPPORT, NODES, patience, directed=True)
    if seconds is not None:
        ours = len(sl.mine(graphs, SUPPORT, NODES))
        note = f"{count} of {ours} in {seconds:.1f} s"
        name = "share of the patterns that gspan-mining's directed mode finds"
        figure(name, count / ours, None, True, "gspan-mining", note)


def growth_with_graphs(graphs):
    few, many = (model_graphs.many(count, graphs=graphs) for count in (len(graphs), 10 * len(graphs)))
    one = best(lambda: sl.mine(few, SUPPORT, NODES))[0]
    ten = best(lambda: sl.mine(many, 10 * SUPPORT, NODES))[0]
    note = f"{ten:.2f} s against {one:.2f} s; no two graphs equal, support {10 * SUPPORT} against {SUPPORT}"
    figure("cost of ten times as many graphs", ten / one, 12, ten / one <= 12, None, note)


def sizes(graphs):
    for size in (7, 8, 9, 10):
        seconds, patterns = best(lambda size=size: sl.mine(graphs, SUPPORT, size), 3 if size < 9 else 1)
        figure(f"seconds, up to {size} nodes", seconds, None, True, None, f"{len(patterns)} patterns")


def measured_apart(folder, kind, support, size, workers):
    """(seconds, peak GB of the calling process, patterns, nodes) of a run in a process of its own."""
    command = [sys.executable, __file__, "--apart", kind, str(support), str(size), str(workers)]
    command += ["--graphs", folder] if folder else []
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _peak_gb():
    """Largest resident memory of this process; not ``ru_maxrss``, which on Linux starts with the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    return float("nan")


def apart(graphs, kind, support, size, workers):
    if kind == "thousand":
        graphs = model_graphs.many(1000, graphs=graphs)
    else:
        graphs = [model_graphs.densenet((6, 12, depth, depth // 2 + 4)) for depth in (24, 32, 36, 40, 48)]
    begin = time.perf_counter()
    patterns = sl.mine(graphs, support, size, workers=workers)
    seconds = time.perf_counter() - begin
    peak = _peak_gb()
    print(json.dumps([seconds, peak, len(patterns), sum(len(graph.nodes) for graph in graphs)]))


def large(folder):
    seconds, peak, count, nodes = measured_apart(folder, "thousand", 50, NODES, 1)
    note = f"1000 graphs with {nodes} nodes, support 50, {count} patterns"
    figure("seconds for a thousand graphs", seconds, 300, seconds <= 300, None, note)
    figure("peak GB for a thousand graphs", peak, 4, peak <= 4, None, note)
    seconds, peak, count, nodes = measured_apart(folder, "densenets", 5, 6, 1)
    note = f"5 DenseNets, cat of up to 48 tensors, all patterns of up to 6 nodes: {count}"
    figure("seconds for patterns around hubs", seconds, None, True, None, note)
    figure("peak GB for patterns around hubs", peak, 4, peak <= 4, None, note)


def two_workers(folder):
    runs = {workers: min(measured_apart(folder, "thousand", 50, 9, workers) for _ in range(2)) for workers in (1, 2)}
    gain = runs[1][0] / runs[2][0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    note = f"{runs[1][0]:.1f} s against {runs[2][0]:.1f} s; 1000 graphs, up to 9 nodes, {cores} cores"
    figure("times faster with two workers", gain, 1.6, gain >= 1.6, None, note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", help="folder of graphs as JSON")
    parser.add_argument("--patience", type=int, default=120, help="seconds that gspan-mining gets for a size")
    parser.add_argument("--only", nargs="*", help="names of the parts to run, for example: sizes two_workers")
    parser.add_argument("--apart", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    graphs = [sl.ApiGraph.load(path) for path in sorted(Path(given.graphs).glob("*.json"))] if given.graphs else None
    graphs = graphs or model_graphs.zoo()
    if given.apart:
        kind, *numbers = given.apart
        return apart(graphs, kind, *map(int, numbers))
    parts = {
        "beside_fast_gspan": lambda: beside_fast_gspan(graphs),
        "beside_gspan_mining": lambda: beside_gspan_mining(graphs, given.patience),
        "growth_with_graphs": lambda: growth_with_graphs(graphs),
        "sizes": lambda: sizes(graphs),
        "large": lambda: large(given.graphs),
        "two_workers": lambda: two_workers(given.graphs),
    }
    sl.mine(graphs, SUPPORT, 3)  # so that no figure holds the time of imports
    for name, part in parts.items():
        if given.only and name not in given.only:
            continue
        peer = {"beside_fast_gspan": "fast_gspan", "beside_gspan_mining": "gspan_mining"}.get(name)
        if peer and importlib.util.find_spec(peer) is None:
            figure(name, None, None, False, peer.replace("_", "-"), "the peer is not installed")
            continue
        part()


if __name__ == "__main__":
    main()
