"""The models of a zoo traced one by one: ``sortlib trace``."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from sortlib.errors import SortError, choices
from sortlib.features import CallRecord
from sortlib.graph import ApiGraph
from sortlib.records import save_records
from sortlib.replay import Replay
from sortlib.runner.files import writable
from sortlib.tracing import Tracer
from sortlib.zoo import load_zoo, prepare
from sortlib.zoo.raised import reported


@dataclass
class ZooTraces:
    """What tracing a zoo has shown.

    Attributes
    ----------
    table : DataFrame with model, calls, edges, apis; with gradients also the number of calls that have any.
    apis : API names, most frequent first.
    replays : ``sortlib.replay.Replay`` of each model, where asked for.
    failures : model -> why it could not be traced.
    """

    table: pd.DataFrame
    apis: list[str]
    replays: list[Replay] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def trace_zoo(name, only=None, out=None, progress=True, verify=False, fake=False, train=False,
              records=False) -> ZooTraces:  # fmt: skip
    """Trace every model of a zoo on its first input. A model that fails is named, and the others are traced.

    Parameters
    ----------
    name : zoo file or bundled name.
    only : names of the models to trace; all if not given.
    out : directory for the graphs, ``<model>.json``.
    verify : replay every trace and compare all bits.
    fake : capture without computing (``sortlib.fake``), for models that are too big to run.
    train : a training step, forward and backward, in training mode; the records hold gradients.
    records : write the records to ``out`` too, ``<model>.parquet``.

    Raises
    ------
    SortError
        An unknown model; ``fake`` with ``verify``, ``train`` or ``records``, which need values; ``records`` without
        ``out``; a file of ``out`` that cannot be written.
    """
    wants = {"--verify": verify, "--train": train, "--records": records}
    if fake and any(wants.values()):
        asked = next(option for option, wanted in wants.items() if wanted)
        raise SortError(f"a capture without values (--fake) has none for {asked}; choose one")
    if records and not out:
        raise SortError("--records needs a directory for the files: give --out too")
    zoo = load_zoo(name)
    names = [entry.name for entry in zoo.models]
    for wanted in only or []:
        if wanted not in names:
            raise SortError(f"zoo {name}: no model {wanted!r}; valid: {choices(names)}")
    if out:
        writable(out)
    rows, counts, traces = [], Counter(), ZooTraces(pd.DataFrame(), [])
    with tqdm([e for e in zoo.models if not only or e.name in only], unit="model", disable=not progress) as bar:
        for entry in bar:
            bar.set_description(f"trace {entry.name}")
            try:
                graph, calls, replay = _trace_once(entry, zoo, verify, fake, train, records)
            except SortError as error:
                traces.failures[entry.name] = str(error)
                continue
            traces.replays += [replay] if replay else []
            rows.append(_row(graph) | ({"gradients": sum(map(_has_gradient, calls))} if train else {}))
            counts.update(node.api for node in graph.nodes)
            if out:
                graph.save(Path(out) / f"{graph.name}.json")
            if records:
                save_records(calls, Path(out) / f"{graph.name}.parquet")
            gc.collect()
    traces.table = pd.DataFrame(rows, columns=["model", "calls", "edges", "apis", *(["gradients"] if train else [])])
    traces.apis = [api for api, _ in counts.most_common()]
    return traces


def _trace_once(entry, zoo, verify, fake, train, records):
    """A model's graph without its evidence, its records, and its replay if wanted."""
    if fake:
        from sortlib.fake import fake_trace

        return _not_empty(fake_trace(entry, zoo.seed, records=False)[0]), [], None
    model, samples = prepare(entry, zoo)
    if train:
        with reported(f"model {entry.name!r}: train()"):
            model.train()
    args, kwargs = samples[0]
    tracer = Tracer(entry.name, records=verify or train or records, exact=verify, backward=train)
    graph, calls = tracer.run(model, *args, **kwargs)
    _not_empty(graph)
    return graph.without_evidence(), calls, graph.replay(calls) if verify else None


def _not_empty(graph: ApiGraph) -> ApiGraph:
    """The graph of a model, unless it has nothing to mine, which a study refuses too."""
    if not graph.nodes:
        raise SortError(f"model {graph.name}: no API call was seen")
    return graph


def _row(graph: ApiGraph):
    apis = {node.api for node in graph.nodes}
    return {"model": graph.name, "calls": len(graph.nodes), "edges": len(graph.edges), "apis": len(apis)}


def _has_gradient(record: CallRecord) -> bool:
    return bool(record.input_gradients) or any(features is not None for features in record.output_gradients)
