"""Graphs of API calls: what the tracer sees and what the miner returns."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from sortlib.errors import SortError
from sortlib.runner.files import write_whole


class Edge(NamedTuple):
    """One tensor handed from a call to a later call.

    ``argument`` is the label that mining compares: the destination's argument name, one shared name for
    the operands of a commutative API, with ``[k]`` appended where the producer returns several tensors
    and ``@alias`` where the consumer reads another view of the memory that the producer wrote.
    """

    src: int
    dst: int
    argument: str


class Wire(NamedTuple):
    """Where exactly an edge's tensor leaves and arrives, which the mined label does not say.

    ``path`` leads into the destination's bound arguments, for example ``("tensors", 3)``; ``output`` is
    the position among the producer's output tensors; ``alias`` is true where producer and consumer only
    share memory, so that the producer's output is not the consumer's argument itself.
    """

    path: tuple[str | int, ...]
    output: int = 0
    alias: bool = False


@dataclass(frozen=True)
class Node:
    """One API call of a model.

    Attributes
    ----------
    api : canonical name (``sortlib.apis``), the label that mining compares.
    target : the spelling that was called, for example ``torch.Tensor.add_``.
    module_path : path of the innermost module, for example ``backbone.layer1.0.conv1``; empty at the top.
    source : ``file.py:line`` of the innermost model code, empty if unknown.
    inplace : whether the call wrote into one of its arguments.
    """

    api: str
    target: str = ""
    module_path: str = ""
    source: str = ""
    inplace: bool = False

    @classmethod
    def made(cls, api, target, module_path, source, inplace) -> Node:
        """The same as the constructor, in a fraction of its time."""
        node = object.__new__(cls)
        node.__dict__.update(api=api, target=target, module_path=module_path, source=source, inplace=inplace)
        return node


@dataclass(frozen=True, repr=False)
class ApiGraph:
    """A directed acyclic multigraph of API calls; nodes stand in the order of execution.

    Parallel edges are kept (``x * x`` is two), also when their labels agree.

    Attributes
    ----------
    name : the model's name.
    nodes : tuple of ``Node``.
    edges : tuple of ``Edge`` (src, dst, argument), ordered by dst.
    wires : tuple of ``Wire``, one for each edge.
    notes : what the tracer could not see or had to assume, one line each.
    evidence : what ``replay`` needs beside the records (``sortlib.evidence.Evidence``), if the graph was traced in this
        process. It refers to the model's parameters and inputs and keeps them alive; ``without_evidence`` lets go of
        them. It is neither saved nor compared, nor sent to other processes.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    wires: tuple[Wire, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    evidence: Any = field(default=None, compare=False, repr=False)

    def __repr__(self):
        return f"ApiGraph({self.name!r}: {len(self.nodes)} calls, {len(self.edges)} edges)"

    def __post_init__(self):
        count = len(self.nodes)
        for node in self.nodes:
            if not isinstance(node.api, str):
                raise SortError(f"graph {self.name!r}: node label {node.api!r} is not a string")
        for edge in self.edges:
            if not isinstance(edge.argument, str):
                raise SortError(f"graph {self.name!r}: edge label {edge.argument!r} is not a string")
            if not (0 <= edge.src < count and 0 <= edge.dst < count):
                raise SortError(f"graph {self.name!r}: edge {tuple(edge)} names a node outside 0..{count - 1}")
        if len(self.wires) != len(self.edges):
            raise SortError(f"graph {self.name!r}: {len(self.edges)} edges but {len(self.wires)} wires")
        if any(edge.src >= edge.dst for edge in self.edges) and not nx.is_directed_acyclic_graph(self.to_networkx()):
            raise SortError(f"graph {self.name!r} has a cycle; a graph of API calls is acyclic")

    @classmethod
    def from_edges(cls, apis, edges, name="graph") -> ApiGraph:
        """A graph by hand: ``ApiGraph.from_edges(["relu", "conv2d"], [(0, 1, "input")])``.

        Parameters
        ----------
        apis : API name of each node.
        edges : ``(src, dst, argument)`` triples.

        Raises
        ------
        SortError
            Labels that are not strings, node numbers out of range, or a cycle.
        """
        try:
            triples = tuple(Edge(*edge) for edge in edges)
        except TypeError as error:
            raise SortError(f"graph {name!r}: an edge is (src, dst, argument): {error}") from None
        wires = tuple(Wire((edge.argument,)) for edge in triples)
        return cls(name, tuple(Node(api) for api in apis), triples, wires)

    def to_networkx(self) -> nx.MultiDiGraph:
        """The same graph with attributes ``api``, ``module_path`` on nodes and ``argument`` on edges."""
        result = nx.MultiDiGraph(name=self.name)
        for index, node in enumerate(self.nodes):
            result.add_node(index, api=node.api, module_path=node.module_path)
        for edge in self.edges:
            result.add_edge(edge.src, edge.dst, argument=edge.argument)
        return result

    def without_evidence(self) -> ApiGraph:
        """The same graph without what a replay needs, so that it keeps no model alive."""
        return self if self.evidence is None else replace(self, evidence=None)

    def __getstate__(self):
        return {**self.__dict__, "evidence": None}

    def replay(self, records):
        """Run the recorded calls again and compare every output bit for bit.

        Parameters
        ----------
        records : those that ``trace`` returned together with this graph.

        Returns
        -------
        ``sortlib.replay.Replay``, whose ``ok`` and ``describe()`` tell the result; it ends at the first call that
        differs or raises.

        Raises
        ------
        SortError
            The graph was loaded or traced without records, so that parameters and inputs are not at hand.
        """
        from sortlib.replay import replay

        return replay(self, records)

    def save(self, path):
        """Write the graph as JSON, or raise ``SortError`` where the file cannot be written."""
        form = asdict(self.without_evidence())
        del form["evidence"]
        write_whole(path, json.dumps(form).encode())

    @classmethod
    def load(cls, path) -> ApiGraph:
        """Read what ``save`` wrote."""
        raw = json.loads(Path(path).read_text())
        wires = (Wire(tuple(part), output, alias) for part, output, alias in raw["wires"])
        return cls(
            raw["name"],
            tuple(Node(**node) for node in raw["nodes"]),
            tuple(Edge(*edge) for edge in raw["edges"]),
            tuple(wires),
            tuple(raw["notes"]),
        )


class Embedding(NamedTuple):
    """One place where a pattern occurs: ``nodes[i]`` and ``edges[j]`` are the positions in graph number
    ``graph`` of the pattern's node i and edge j."""

    graph: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """A frequent subgraph.

    Attributes
    ----------
    id : stable name, the same for every order of nodes, graphs and API names.
    nodes : API name of each node, in canonical order.
    edges : ``(src, dst, argument)`` triples, parallel ones kept.
    support : number of graphs that hold the pattern.
    graph_ids : positions of those graphs in the list that was mined.
    embeddings : some or all occurrences, at least one for each graph.
    """

    id: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    support: int
    graph_ids: tuple[int, ...]
    embeddings: tuple[Embedding, ...] = field(default=(), compare=False, repr=False)

    @property
    def has_join(self) -> bool:
        """Whether some node takes tensors from two or more pattern nodes (the published patterns have none)."""
        producers = {}
        for edge in self.edges:
            producers.setdefault(edge.dst, set()).add(edge.src)
        return any(len(sources) > 1 for sources in producers.values())

    def to_networkx(self) -> nx.MultiDiGraph:
        """The pattern as a networkx graph with attributes ``api`` and ``argument``."""
        return ApiGraph.from_edges(self.nodes, self.edges, name=self.id).to_networkx()
