"""The explorer as a widget: its state, and what follows when one of it changes."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import anywidget
from traitlets import Dict, Enum, Float, Int, List, Unicode, observe, validate

from sortlib import details
from sortlib.drawing import SAMPLERS
from sortlib.errors import SortError, choices
from sortlib.explorer import catalogue, inspection, picture
from sortlib.explorer.entries import Entries, most_serious
from sortlib.explorer.still import still
from sortlib.pipeline import candidate_of
from sortlib.platform import platforms, require
from sortlib.runner.campaign import run

_HERE = Path(__file__).parent
_STEPS = ("drawing the case", "running it on {reference} and {candidate}", "judging")
_IDLE = {"state": "idle", "text": "", "step": 0, "steps": len(_STEPS)}


class Explorer(anywidget.AnyWidget):
    """A study to look into, in a browser or from Python: every choice is an attribute that can be read and set.

    Attributes
    ----------
    pattern, case, node : the present choice. ``case`` is the id of a case, ``run-1``, ``run-2``, ... for those run
        here, and empty where the pattern was not run; ``node`` is the number of a call in it.
    filter : any of the keys of ``catalogue.FILTERS``, for example ``{"api": "conv2d add", "min_support": 5}``.
    sort : ``calls``, ``nodes``, ``support``, ``largest`` or ``verdict``; a minus in front puts the largest first.
    detail : what is shown of the chosen call, as a dictionary; only to be read.
    side, scale : ``propagated`` or ``local``, ``paper`` or ``log``; as in ``figures.amplification``.
    threshold : of the paper's rule, in the output's own unit; colours and verdicts follow it.
    reference, candidate, sampler, seed : what ``rerun`` takes.
    status : how far a run is, or what came of the last one; only to be read.
    """

    _esm = _HERE / "explorer.js"
    _css = _HERE / "explorer.css"

    pattern = Unicode().tag(sync=True)
    case = Unicode().tag(sync=True)
    node = Int(0).tag(sync=True)
    filter = Dict().tag(sync=True)
    sort = Unicode("-support").tag(sync=True)
    side = Enum(picture.SIDES, "propagated").tag(sync=True)
    scale = Enum(picture.SCALES, "paper").tag(sync=True)
    threshold = Float(1e-3).tag(sync=True)
    reference = Unicode().tag(sync=True)
    candidate = Unicode().tag(sync=True)
    sampler = Unicode().tag(sync=True)
    seed = Int(0).tag(sync=True)

    # What the browser draws; only Python sets these.
    _rows = List().tag(sync=True)
    _shown = List().tag(sync=True)
    _choices = Dict().tag(sync=True)
    _view = Dict().tag(sync=True)
    _details = Dict().tag(sync=True)  # every call of the present case, so that a click on one needs no answer
    _progress = Dict(_IDLE).tag(sync=True)

    def __init__(self, study, pattern_id: str = "", case_id: str = ""):
        self.study = study
        self._lock = threading.RLock()  # a run ends in a thread of its own
        self._thread = None
        judged = _judged(study)
        order = [] if judged is None else list(details.cases(study)["case"])
        self._entries = Entries(study, judged, order)
        self._records = {}
        if not pattern_id:
            pattern_id = self._entries.pattern_of(case_id) if case_id else details.example_pattern(study)
        config = study.config
        stage = study.stage("run")
        rows = catalogue.rows_of(study, judged)
        self._ready = False
        super().__init__(
            threshold=config.threshold, seed=config.seed, sampler=config.generation.sampler,
            reference=stage.get("reference", config.platforms.reference),
            candidate=stage.get("candidate") or candidate_of(config),
            _rows=rows, _shown=catalogue.chosen(rows, {}, self.sort),
            _choices={
                # A study's own platforms may name programs, which are not started to show somebody's study.
                "platforms": [*platforms().query("available")["platform"], *config.platforms.own],
                "samplers": dict(SAMPLERS),
                "verdicts": catalogue.verdicts_in(rows),
                "apis": sorted({api for row in rows for api in row["calls"].split(", ")}),
                "directory": str(study.directory),
            },
        )  # fmt: skip
        self._ready = True
        self.on_msg(self._handle_message)
        self.choose(pattern_id, case_id)

    def __repr__(self):
        return f"Explorer of {self.study.directory}: pattern {self.pattern}, case {self.case or 'not run'}"

    # ---- the choice ----

    def choose(self, pattern_id: str, case_id: str = ""):
        """Go to a pattern, and to one of its cases (the most telling one if not given).

        Raises
        ------
        SortError
            No such pattern or case.
        """
        pattern_id = self.study.pattern(pattern_id).id
        if case_id:
            pattern_id = self._entries.pattern_of(case_id)
        with self._lock, self.hold_sync():
            self._ready = False
            try:
                self.pattern = pattern_id
                if self._view.get("pattern") != pattern_id:
                    self.node = 0
                own = self.case_ids(pattern_id)
                self.case = case_id or (own[0] if own else "")
            finally:
                self._ready = True
            self._show_graph()
        self._show_calls()

    def case_ids(self, pattern_id: str = "") -> list[str]:
        """The cases of a pattern that were run (the present pattern if not given): the study's, the most telling first,
        then those run here."""
        return self._entries.keys(pattern_id or self.pattern)

    def step(self, by: int = 1):
        """Go to the next case of the pattern, or by another number of cases; after the last comes the first."""
        own = self.case_ids()
        if own:
            self.case = own[(own.index(self.case) + by) % len(own)]

    @property
    def shown(self) -> list[str]:
        """Ids of the patterns that pass the filter, in the present order."""
        return [self._rows[number]["id"] for number in self._shown]

    @property
    def status(self) -> str:
        """``idle``, ``running``, ``done`` or ``error``, with what else is to be said of it."""
        return ": ".join(filter(None, (self._progress["state"], self._progress["text"])))

    @property
    def outcomes(self):
        """Rows of the present case with both rules' verdicts at the present threshold; None where it was not run."""
        return self._entries[self.case].judged(self.threshold) if self.case else None

    @property
    def snippet(self) -> str:
        """Python lines that repeat the present case; empty where it was not run."""
        return self._entries.snippet(self._entries[self.case], self.threshold) if self.case else ""

    @validate("pattern")
    def _check_pattern(self, proposal):
        return self.study.pattern(proposal["value"]).id if proposal["value"] else ""

    @validate("case")
    def _check_case(self, proposal):
        key = proposal["value"]
        if key:
            self._entries[key]  # says in one line what is wrong
        return key

    @validate("node")
    def _check_node(self, proposal):
        count = len(self.study.pattern(self.pattern).nodes) if self.pattern else 1
        if not 0 <= proposal["value"] < count:
            raise SortError(f"pattern {self.pattern} has calls 0 to {count - 1}, no call {proposal['value']}")
        return proposal["value"]

    @validate("filter")
    def _check_filter(self, proposal):
        return catalogue.checked_filter(proposal["value"])

    @validate("sort")
    def _check_sort(self, proposal):
        return catalogue.checked_sort(proposal["value"])

    @validate("sampler")
    def _check_sampler(self, proposal):
        if proposal["value"] not in SAMPLERS:
            raise SortError(f"unknown sampler {proposal['value']!r}; valid: {choices(SAMPLERS)}")
        return proposal["value"]

    @validate("threshold")
    def _check_threshold(self, proposal):
        if not 0 < proposal["value"] < float("inf"):
            raise SortError(f"threshold is {proposal['value']:g}; it must be above 0")
        return proposal["value"]

    @validate("seed")
    def _check_seed(self, proposal):
        if proposal["value"] < 0:
            raise SortError(f"seed is {proposal['value']}; it must be 0 or more")
        return proposal["value"]

    @observe("pattern", "case")
    def _chosen(self, change):
        if self._ready:
            self.choose(self.pattern, self.case if change["name"] == "case" else "")

    @observe("side", "scale", "threshold")
    def _look_changed(self, change):
        if self._ready and self.pattern:
            self._show()

    @observe("filter", "sort")
    def _list_changed(self, change):
        if self._ready:
            self._shown = catalogue.chosen(self._rows, self.filter, self.sort)

    # ---- what is shown ----

    def _show(self):
        self._show_graph()
        self._show_calls()

    def _show_graph(self):
        with self._lock:
            pattern = self.study.pattern(self.pattern)
            size = "1 call" if len(pattern.nodes) == 1 else f"{len(pattern.nodes)} calls"
            models = "1 model" if pattern.support == 1 else f"{pattern.support} models"
            view = {"pattern": pattern.id, "case": self.case, "about": f"{size}, in {models}", "snippet": self.snippet}
            view["cases"] = [{"key": key, "label": self._label(key)} for key in self.case_ids()]
            if self.case:
                entry = self._entries[self.case]
                view["pair"] = f"{entry.reference} against {entry.candidate}"
                view["drawn"] = f"seed {entry.case.seed}, sampler {entry.case.sampler}"
                view["verdict"] = most_serious(entry.rows(self.threshold))
                view["picture"] = picture.of_case(entry, self.threshold, self.side, self.scale)
            else:
                view["pair"] = "mined, but not run in this study"
                view["drawn"] = view["verdict"] = ""
                view["picture"] = picture.of_pattern(pattern)
            self._view = view

    def _label(self, key) -> str:
        entry = self._entries[key]
        largest = entry.largest
        size = "no value" if largest != largest else f"|a-b| {largest:.2e}" if largest else "identical"
        if key not in self._entries.live:
            return f"{key}: {size}"
        how = f"seed {entry.case.seed}, {entry.case.sampler}"
        return f"{key}: {size}; {entry.reference} against {entry.candidate}, {how}"

    def _show_calls(self):
        """After the graph, in a message of its own, so that the graph is drawn meanwhile."""
        with self._lock:
            if self.case:
                entry = self._entries[self.case]
                records = [self._record(node.record) for node in entry.case.nodes]
                make = functools.partial(inspection.of_case, entry, self.threshold)
            else:
                graph, nodes, _ = self.study.pattern(self.pattern).embeddings[0]
                name = self.study.graphs[graph].name
                records = [self._record((name, 0, node)) for node in nodes]
                make = inspection.of_pattern
            calls = [None] * len(records)
            calls[self.node] = make(self.node, records[self.node])  # the chosen one first
            self._details = {"pattern": self.pattern, "case": self.case, "calls": calls}
            calls = [call or make(place, records[place]) for place, call in enumerate(calls)]
            self._details = {**self._details, "calls": calls}

    @property
    def detail(self) -> dict:
        """What is shown of the chosen call: title, facts, source, record, verdicts, differences, outputs, inputs."""
        return self._details["calls"][self.node]

    def _record(self, key):
        if not self._records:
            self._records = {record.key: record for record in self.study.records}
        return self._records[tuple(key)]

    # ---- running a case anew ----

    def rerun(self, wait: bool = False):
        """Run the present case on ``reference`` and ``candidate``, drawn with ``seed`` and ``sampler``, and go to it.

        Runs in a thread, so that the explorer can be used meanwhile; whoever went to another pattern is left there.
        What goes wrong stands in the explorer, in one line. With another seed or sampler it is the case of the same
        number that ``sl.generate`` makes with them.

        Parameters
        ----------
        wait : return when it is done, and raise what went wrong.

        Raises
        ------
        SortError
            A run is in progress; with ``wait`` also an unknown or missing platform, or a pattern without a case.
        """
        with self._lock:
            if self._progress["state"] == "running":
                raise SortError("a case is being run; wait until it is done")
            number = self._entries[self.case].number if self.case else 0
            job = (self.pattern, number, self.seed, self.sampler, self.reference, self.candidate)
            self._report("running", 0, job)
        if wait:
            self._run(*job)
        else:
            self._thread = threading.Thread(target=self._run_quietly, args=job, daemon=True)
            self._thread.start()

    def _run_quietly(self, *job):
        try:
            self._run(*job)
        except SortError:
            pass  # stands in the progress line
        except Exception as error:
            text = str(error).splitlines() or [""]
            self._progress = {**_IDLE, "state": "error", "text": f"{type(error).__name__}: {text[0]}"}

    def _run(self, *job):
        pattern_id, number, seed, sampler, reference, candidate = job
        try:
            pair = [require(name, self.study.config.platforms.own) for name in (reference, candidate)]
            case = self._entries.make(pattern_id, number, seed, sampler)
            self._report("running", 1, job)
            outcomes = run([case], *pair, timeout=self.study.config.timeout, progress=False)
            self._report("running", 2, job)
            with self._lock:
                entry = self._entries.add(case, number, outcomes, *(platform.name for platform in pair))
                done = f"{entry.key} of pattern {pattern_id} is done: {most_serious(entry.rows(self.threshold))}"
                if self.pattern == pattern_id:  # whoever went elsewhere meanwhile is left there
                    self.choose(pattern_id, entry.key)
                self._progress = {**_IDLE, "state": "done", "text": done, "step": len(_STEPS)}
        except SortError as error:
            self._progress = {**_IDLE, "state": "error", "text": str(error)}
            raise
        finally:
            if self._progress["state"] == "running":
                self._progress = {**_IDLE, "state": "error", "text": "interrupted"}

    def _report(self, state, step, job):
        text = _STEPS[step].format(reference=job[4], candidate=job[5])
        self._progress = {"state": state, "text": text, "step": step, "steps": len(_STEPS)}

    def _handle_message(self, _, content, buffers):
        if content.get("action") == "rerun" and self._progress["state"] != "running":
            for name in ("reference", "candidate", "sampler", "seed"):
                setattr(self, name, content["settings"][name])
            self.rerun()

    # ---- display ----

    def _ipython_display_(self):
        # Two outputs: the widget, and a picture that stays where no widget can be. The widget's style hides the
        # picture; one output of both kinds would be an empty place in an HTML page.
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=metadata, raw=True)
        entry = self._entries[self.case] if self.case else None
        display(still(self.study, self.pattern, entry, self.threshold, self.side, self.scale), raw=True)


def _judged(study):
    """The study's judged outcomes, or None where nothing was run yet."""
    if not study.stage("run") or not any(study.outcome_folder.glob("part-*.parquet")):
        return None
    return study.judged
