"""The proof of a trace: its calls run again, in order, must give every tensor back bit for bit.

What a graph and its records do not hold is kept as ``Evidence`` while the model runs: the tensors that no traced call
made (parameters, buffers, inputs, constants) and a digest of every output. The graph carries it, and the model is no
longer needed::

    graph, records = sortlib.trace(model, *args, **kwargs)
    print(graph.replay(records).describe())
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from sortlib import apis
from sortlib.api_tables import UNINITIALISED
from sortlib.errors import SortError
from sortlib.evidence import Digest, Made, digest, random_states
from sortlib.features import TensorFeatures, map_tensors
from sortlib.graph import ApiGraph
from sortlib.recorder import _output_tensors


@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    Attributes
    ----------
    graph : the model's name.
    calls, outputs : how many calls ran again and how many of their outputs agree.
    skipped : calls that were left out, node -> reason.
    unnamed : names in the records that do not lead back to the function that was called.
    node : first call that differs; None if every one agrees.
    difference : that call and what differs.
    """

    graph: str
    calls: int
    outputs: int
    skipped: dict[int, str]
    unnamed: tuple[str, ...] = ()
    node: int | None = None
    difference: str = ""

    @property
    def ok(self) -> bool:
        """Whether every output of every repeated call agreed bit for bit."""
        return self.node is None

    def describe(self) -> str:
        """One line."""
        left = f"; {len(self.skipped)} calls left out ({next(iter(self.skipped.values()))})" if self.skipped else ""
        left += f"; names that lead to no operator: {', '.join(self.unnamed)}" if self.unnamed else ""
        if self.ok:
            return f"{self.graph}: {self.calls} calls replayed, {self.outputs} outputs identical bit for bit{left}"
        return f"{self.graph}: differs first in {self.difference}{left}"


def replay(graph: ApiGraph, records) -> Replay:
    """Run the recorded calls again and compare every output with its digest.

    Arguments come from the edges (the output of the producing call), from the records (everything that is no
    tensor) and from the evidence (tensors made elsewhere, and objects that only share memory with a call's output).
    The model itself is not used and not changed.

    Parameters
    ----------
    graph, records : of one run, traced in this process.

    Returns
    -------
    ``Replay``; it ends at the first call that raises or differs.

    Raises
    ------
    SortError
        The graph holds no evidence, or the records are not one for each of its nodes.
    """
    evidence = graph.evidence
    if evidence is None:
        raise SortError(
            f"graph {graph.name!r} was loaded, sent here or traced without records; a replay needs parameters and"
            " inputs: trace the model again and replay what sortlib.trace returns"
        )
    if len(records) != len(graph.nodes):
        raise SortError(f"graph {graph.name!r} has {len(graph.nodes)} calls, but {len(records)} records were given")
    memory = _Memory(evidence)
    wired = {(e.dst, w.path): Made(e.src, w.output) for e, w in zip(graph.edges, graph.wires, strict=True)
             if not w.alias}  # fmt: skip
    sources = {**evidence.sources, **wired}
    last = {}  # the call that reads an output last, after which it is let go
    for (node, _), source in sources.items():
        if isinstance(source, Made):
            last[source] = max(node, last.get(source, node))
    ending = {}
    for source, node in last.items():
        ending.setdefault(node, []).append(source)
    unnamed = tuple(sorted({graph.nodes[node].target for node in evidence.unnamed}))
    skipped = evidence.skipped | dict.fromkeys(evidence.given, "an argument that records do not hold")
    live, calls, compared, failed, difference = {}, 0, 0, None, ""
    with torch.no_grad(), _restored(evidence.random):
        for node, record in enumerate(records):
            if node in evidence.skipped:
                continue
            if node in evidence.given:
                outputs = [memory.tensor(place) for place in evidence.given[node]]
            else:
                try:
                    outputs = _again(node, record, sources, live, memory, evidence)
                    difference = _difference(outputs, evidence.digests[node], evidence.exact)
                except Exception as error:  # whatever a call can raise is the result here
                    difference = f"raised {type(error).__name__}: {' '.join(str(error).split())}"
                if difference:
                    failed, difference = node, _place(record, difference)
                    break
                calls, compared = calls + 1, compared + len(outputs)
            live.update({Made(node, k): output for k, output in enumerate(outputs) if Made(node, k) in last})
            for source in ending.get(node, ()):
                live.pop(source, None)
    return Replay(graph.name, calls, compared, skipped, unnamed, failed, difference)


def _again(node, record, sources, live, memory, evidence):
    given = {}

    def fetch(path, _):
        source = sources[node, path]
        if isinstance(source, Made) and source not in live:
            raise LookupError(f"argument {'.'.join(map(str, path))}: call {source.node} has no output {source.output}")
        given[path] = live[source] if isinstance(source, Made) else memory.tensor(source)
        return given[path]

    arguments = [a._replace(value=map_tensors(a.value, fetch, TensorFeatures, (a.name,))) for a in record.arguments]
    args, kwargs = apis.unbind(arguments)
    dtype = evidence.autocast.get(node)
    autocast = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
    with torch.set_grad_enabled(node in evidence.grad), autocast:
        function = evidence.unnamed.get(node) or apis.resolve(record.target)
        result = function(*args, **kwargs)
    if node in evidence.written:
        return [given[path] for path in evidence.written[node]]
    outputs = _output_tensors(result)
    if record.api in UNINITIALISED:
        for tensor in outputs:
            tensor.zero_()
    return outputs


def _difference(outputs, digests, exact) -> str:
    if len(outputs) != len(digests):
        return f"{len(outputs)} outputs instead of {len(digests)}"
    for position, (output, then) in enumerate(zip(outputs, digests, strict=True)):
        now = digest(output, exact)
        for part in Digest._fields:
            before, after = getattr(then, part), getattr(now, part)
            if before != after:
                told = "values differ" if part == "values" else f"{part} {after} instead of {before}"
                return f"output {position}: {told}"
    return ""


def _place(record, text) -> str:
    return f"call {record.node} ({record.api}, module {record.module_path or '(top)'}, {record.source}): {text}"


class _Memory:
    """The externals as a replay reads them: those that the model wrote start again from the copy of before."""

    def __init__(self, evidence):
        self.evidence, self.storages, self.tensors = evidence, {}, {}

    def tensor(self, place):
        if place not in self.tensors:
            self.tensors[place] = self._fresh(self.evidence.externals[place])
        return self.tensors[place]

    def _fresh(self, external):
        tensor, found = external.tensor, external.tensor.detach()
        copy = self.evidence.before.get(external.storage)
        if copy is not None and external.storage not in self.storages:
            self.storages[external.storage] = copy.clone()
        if external.strides is not None:
            storage = self.storages.get(external.storage, tensor.untyped_storage())
            found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            found.set_(storage, external.offset, external.shape, external.strides)
        # Some calls choose their way by this flag, for example a product of a batch with one matrix.
        return found.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _restored(states):
    """The random generators as they were before the run; afterwards as they are now."""
    now = random_states()
    try:
        _set_random(states)
        yield
    finally:
        _set_random(now)


def _set_random(states):
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
