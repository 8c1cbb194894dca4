"""The same directed problem given to two installed miners, for comparison.

Both need ``pip install fast-gspan==0.1.3 gspan-mining==0.2.3``. Neither mines directed graphs correctly, so every edge
u->v becomes u -s- E -d- v with a node E of its own, the result is mined without direction, and only results in which
each E has two neighbours are patterns. Times are of the miner's own process alone, without conversion and filtering.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def _numbers(graphs):
    apis = sorted({node.api for graph in graphs for node in graph.nodes})
    arguments = sorted({edge.argument for graph in graphs for edge in graph.edges})
    return {name: k for k, name in enumerate(apis)}, {name: len(apis) + k for k, name in enumerate(arguments)}


def write_subdivided(graphs, path):
    """gSpan's text format with every edge cut in two by a node that carries the edge's label."""
    apis, arguments = _numbers(graphs)
    with open(path, "w") as file:
        for number, graph in enumerate(graphs):
            print(f"t # {number}", file=file)
            for k, node in enumerate(graph.nodes):
                print(f"v {k} {apis[node.api]}", file=file)
            for k, edge in enumerate(graph.edges):
                print(f"v {len(graph.nodes) + k} {arguments[edge.argument]}", file=file)
            for k, edge in enumerate(graph.edges):
                print(f"e {edge.src} {len(graph.nodes) + k} 0", file=file)
                print(f"e {len(graph.nodes) + k} {edge.dst} 1", file=file)
        print("t # -1", file=file)


def fast_gspan(graphs, min_support, max_nodes, timeout=600, threads=1, max_cut=None):
    """Time gBolt's own process on the subdivided graphs and read its patterns.

    ``max_cut`` is the limit on nodes after cutting; the default 2 * max_nodes - 1 holds all trees of ``max_nodes``
    nodes.

    Returns
    -------
    seconds : wall time of the process; None if it ran out of time.
    patterns : list of (node labels, (src, dst, argument) edges, support), or None.
    """
    from fast_gspan.gbolt_wrapper import GBoltWrapper, _vendor_lib_env

    wrapper = GBoltWrapper()
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "in.txt", Path(folder) / "out.txt"
        write_subdivided(graphs, given)
        share = (min_support + 0.5) / len(graphs)  # gBolt rounds the product down
        command = [wrapper._gbolt_path, "-i", given, "-o", out, "-s", str(share), "-d"]
        command += ["-x", str(max_cut or 2 * max_nodes - 1)]
        begin = time.perf_counter()
        try:
            subprocess.run(command, capture_output=True, timeout=timeout, check=True,
                           env={**_vendor_lib_env(), "OMP_NUM_THREADS": str(threads)})  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, None
        seconds = time.perf_counter() - begin
        raw = [pattern for part in sorted(Path(folder).glob("out.txt.t*"))
               for pattern in wrapper._parse_gbolt_thread_output(part.read_text().strip())]  # fmt: skip
    apis, arguments = _numbers(graphs)
    names = {number: name for name, number in [*apis.items(), *arguments.items()]}
    patterns = [_uncut(pattern, names, len(apis), max_nodes) for pattern in raw]
    return seconds, [pattern for pattern in patterns if pattern is not None]


def _uncut(pattern, names, apis, max_nodes):
    """The directed pattern that a pattern of cut edges stands for, or None if some cut edge is not whole."""
    label = dict(pattern["vertices"])
    ends = {node: {} for node, number in label.items() if number >= apis}
    for left, right, side in pattern["edges"]:
        cut, node = (left, right) if left in ends else (right, left)
        ends[cut][side] = node
    if any(len(sides) != 2 for sides in ends.values()) or len(label) - len(ends) > max_nodes or not ends:
        return None
    place = {node: k for k, node in enumerate(node for node in label if node not in ends)}
    edges = [(place[sides[0]], place[sides[1]], names[label[cut]]) for cut, sides in ends.items()]
    return tuple(names[label[node]] for node in place), edges, pattern["support"]


def gspan_mining(graphs, min_support, max_nodes, timeout=600, directed=False):
    """Seconds that gspan-mining takes on the subdivided graphs, in a process of its own; None if it ran out of time.

    ``directed`` times its directed mode on the graphs themselves instead, which misses patterns.

    Returns
    -------
    seconds : wall time without the start of Python; None if it ran out of time.
    count : number of patterns that it reports, before those are left out that are no patterns of the directed graphs.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "in.txt"
        if directed:
            write_directed(graphs, given)
        else:
            write_subdivided(graphs, given)
        largest = max_nodes if directed else 2 * max_nodes - 1
        command = [sys.executable, __file__, given, str(min_support), str(largest), str(int(directed))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        except subprocess.TimeoutExpired:
            return None, None
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def write_directed(graphs, path):
    """gSpan's text format of the graphs as they are."""
    apis, arguments = _numbers(graphs)
    with open(path, "w") as file:
        for number, graph in enumerate(graphs):
            print(f"t # {number}", file=file)
            for k, node in enumerate(graph.nodes):
                print(f"v {k} {apis[node.api]}", file=file)
            for edge in graph.edges:
                print(f"e {edge.src} {edge.dst} {arguments[edge.argument]}", file=file)
        print("t # -1", file=file)


def _run_gspan_mining(path, min_support, max_nodes, directed):
    from gspan_mining.gspan import gSpan

    found = []
    miner = gSpan(path, min_support=min_support, min_num_vertices=2, max_num_vertices=max_nodes,
                  is_undirected=not directed)  # fmt: skip
    miner._report = found.append  # its own report fails with pandas 2 and newer (betterenvi/gSpan#29)
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        miner.run()
    print(time.perf_counter() - begin, len(found))


if __name__ == "__main__":
    _run_gspan_mining(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
