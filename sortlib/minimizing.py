"""The smallest pattern, shapes and values that still show a finding (issue E).

Every smaller case is run by the same worker processes and judged by the same rule; it replaces the present one only
where the call keeps its verdict and its cause. The order of the attempts is fixed, so that a search that ends before
its time is over gives the same case in every run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tqdm.auto import tqdm

from sortlib.arguments import above_zero, instance
from sortlib.errors import SortError
from sortlib.generation import TestCase
from sortlib.grouping import SIDES, Cause, cause_of
from sortlib.judging import RANK, judge_rows
from sortlib.platform import Platform, require
from sortlib.reproducing.draft import Draft, differentiated, tensors_of
from sortlib.reproducing.simpler import simpler_values
from sortlib.reproducing.values import Value
from sortlib.runner.pair import Pair
from sortlib.thresholds import PAPER_THRESHOLD, Table

HANG = (5.0, 20.0)  # a hang is what takes this many seconds, and this many times the reference's own time


@dataclass(frozen=True)
class Target:
    """What a smaller case has to keep.

    Attributes
    ----------
    node : the call in the case.
    rule, threshold : how it is judged; the threshold is the paper's.
    verdict, cause : under that rule.
    row : the judged row.
    table : thresholds of the rule of evidence; None is the table of this package.
    """

    node: int
    rule: str
    threshold: float
    verdict: str
    cause: Cause
    row: dict
    table: Table | None = None

    @property
    def propagated(self) -> bool:
        """Whether the verdict is about each side's own chain of values."""
        return self.rule == "paper" or self.verdict == "amplified"


@dataclass(frozen=True)
class Minimal:
    """A finding made as small as the time allowed.

    Attributes
    ----------
    draft, case : the smallest case; the files that the case reads exist as long as the folder given to the search.
    row : the last run of its last call, judged.
    target : what it keeps.
    kept : whether the verdict was seen again at all; if not, the case is the given one.
    before, after : (calls, input elements).
    tried : cases that were run.
    finished : whether nothing smaller was left to try when the search ended.
    steps : what was made smaller, in words.
    """

    draft: Draft
    case: TestCase
    row: dict
    target: Target
    kept: bool
    before: tuple[int, int]
    after: tuple[int, int]
    tried: int
    finished: bool
    steps: tuple[str, ...]

    def __repr__(self):
        if not self.kept:
            return f"Minimal({self.target.verdict} {self.row['api']}: not seen again)"
        return (f"Minimal({self.target.verdict} {self.row['api']}: {self.before[0]} to {self.after[0]} calls, "
                f"{self.before[1]:,} to {self.after[1]:,} input elements in {self.tried} runs)")  # fmt: skip


def minimize(study, case_id: str, *, seconds: float = 60, node: int | None = None, rule: str = "evidence",
             progress: bool = True) -> Minimal:  # fmt: skip
    """Shrink a finding of a study.

    Parameters
    ----------
    study : study whose cases were run.
    case_id : a case, or a finding's id.
    seconds : time for the search; a case that runs when it is over is finished first.
    node : the call in question; the most serious one of the case if not given.
    rule : ``evidence`` or ``paper``.
    progress : show a progress bar.

    Returns
    -------
    Minimal
        Its files lie below ``findings`` in the study.

    Raises
    ------
    SortError
        No such case; it was not run; or the rule finds nothing in it.
    """
    above_zero(seconds, "minimize: seconds", "number of seconds")
    case, target, pair = locate(study, case_id, node, rule)
    folder = study.path("findings", f"{case.id}-{target.node}-{rule}", "case").parent
    return minimize_case(case, target, *pair, seconds=seconds, timeout=study.config.timeout, folder=folder,
                         progress=progress)  # fmt: skip


def locate(study, name, node=None, rule="evidence", what="minimize"):
    """(case, target, (reference, candidate)) of a case or a finding of a study; ``what`` asks, for messages."""
    import pandas as pd

    from sortlib.grouping import findings
    from sortlib.study import opened

    study = opened(study, what)
    instance(name, str, f"{what}: case_id", "the id of a case or a finding")
    if name not in {case.id for case in study.cases}:
        table = findings(study)
        found = table[table["finding"] == name]
        if len(found) and node is None:
            name, node = found.iloc[0]["worst_case"], int(found.iloc[0]["worst_node"])
    case = study.case(name)
    parts = [study.all_outcomes, study.baseline_outcomes]
    rows = pd.concat([part[part["case"] == case.id] for part in parts if len(part)], ignore_index=True)
    if rows.empty:
        raise SortError(f"{study.directory}: case {case.id!r} was not run yet")
    target = target_of(rows.to_dict("records"), node, rule, study.config.threshold, f"case {case.id}")
    own = study.config.platforms.own
    pair = tuple(require(rows.iloc[0][side], own) for side in ("reference", "candidate"))
    return case, target, pair


def target_of(rows, node=None, rule="evidence", threshold=PAPER_THRESHOLD, what="the case", table=None) -> Target:
    """The most serious call among the rows of one case, or the given one.

    Raises
    ------
    SortError
        The rule finds nothing in it.
    """
    verdicts = judge_rows(rows, rule, threshold, table)
    found = []
    for row, given in zip(rows, verdicts, strict=True):
        row = {**row, "verdict": str(given[0]), "reason": given[1], "symptom": given[2] if rule == "paper" else ""}
        cause = cause_of(row, rule)
        # What both sides refuse is an invalid input, and accuses nobody.
        if cause.kind and not (cause.kind == "exception" and cause.side == "both"):
            found.append(Target(int(row["node"]), rule, threshold, row["verdict"], cause, row, table))
    chosen = [target for target in found if node in (None, target.node)]
    if not chosen:
        said = ", ".join(sorted({str(given[0]) for given in verdicts}))
        raise SortError(f"{what}: nothing to reproduce{'' if node is None else f' in call {node}'}; the {rule} rule "
                        f"says {said}")  # fmt: skip
    order = {str(verdict): place for place, verdict in enumerate(RANK)}
    return min(chosen, key=lambda target: (order.get(target.verdict, 0), target.node))


def minimize_case(case, target: Target, reference: Platform, candidate: Platform, *, seconds=60, timeout=60, folder,
                  progress=True) -> Minimal:  # fmt: skip
    """``minimize`` for any case; ``folder`` receives the inputs of the smallest one."""
    with Pair(reference, candidate) as pair:
        return minimize_with(pair, case, target, seconds=seconds, timeout=timeout, folder=folder, progress=progress)


def minimize_with(pair: Pair, case, target: Target, *, seconds=60, timeout=60, folder, progress=True) -> Minimal:
    """``minimize_case`` with two platforms that run already."""
    draft = Draft.of(case, target.node)
    pair.timeout = limit_of(target, timeout)
    with tqdm(desc=f"minimize {target.row['api']}", unit="run", disable=not progress) as bar:
        search = Search(pair, draft, target, time.monotonic() + seconds, bar)
        kept = search.keeps(draft) is not None
        finished = search.run() if kept else False
        smallest = search.draft.materialised(folder)
    return Minimal(search.draft, smallest, search.row or target.row, target, kept, draft.size, search.draft.size,
                   search.tried, finished, tuple(search.steps))  # fmt: skip


def limit_of(target, timeout) -> float:
    """Seconds for one attempt: a hang does not need the study's whole time limit to be seen."""
    if target.cause.kind != "hang":
        return timeout
    usual = target.row.get("seconds_reference") or 0.0
    return min(timeout, max(HANG[0], HANG[1] * (usual if usual == usual else 0.0)))


class Search:
    """Greedy descent from one case to smaller ones.

    Attributes
    ----------
    draft, row : the smallest case so far and the judged row of its last call.
    tried, steps : as in ``Minimal``.
    """

    def __init__(self, pair: Pair, draft: Draft, target: Target, deadline: float, bar):
        self.pair, self.draft, self.target, self.deadline, self.bar = pair, draft, target, deadline, bar
        self.row, self.tried, self.steps, self._seen = None, 0, [], {_key(draft)}

    def run(self) -> bool:
        """Shrink until nothing helps; False if the time was over before."""
        try:
            while True:
                before = len(self.steps)
                for step in (self._gradients, self._nodes, self._arguments, self._shapes, self._values):
                    step()
                if len(self.steps) == before:
                    return True
        except _TimeOver:
            return False

    def keeps(self, draft):
        """The judged row of a draft's last call where verdict and cause are the target's, else None."""
        self.tried += 1
        self.bar.update()
        case = draft.materialised(self.pair.folder / "inputs")
        rows = self.pair.rows(case)
        (given,) = judge_rows(rows[-1:], self.target.rule, self.target.threshold, self.target.table)
        row = {**rows[-1], "verdict": str(given[0]), "reason": given[1],
               "symptom": given[2] if self.target.rule == "paper" else ""}  # fmt: skip
        same = row["verdict"] == self.target.verdict and cause_of(row, self.target.rule) == self.target.cause
        same = same and _beyond(row) >= _beyond(self.target.row)
        if same and draft is self.draft:
            self.row = row
        return row if same else None

    def accept(self, draft, step) -> bool:
        """Try a draft, and go on from it if it keeps the verdict."""
        key = _key(draft)
        if key in self._seen:
            return False
        if time.monotonic() > self.deadline:
            raise _TimeOver
        self._seen.add(key)
        row = self.keeps(draft)
        if row is None:
            return False
        self.draft, self.row = draft, row
        self.steps.append(step)
        self.bar.set_postfix_str(f"{draft.size[0]} calls, {draft.size[1]:,} elements")
        return True

    # ---- fewer gradients ----

    def _gradients(self):
        """Without the backward pass; else only that of the last call, and of it only the gradients that it takes."""
        nodes = self.draft.nodes
        if not any(node.backward for node in nodes):
            return
        plain = tuple(replace(node, backward=False, frozen=[]) for node in nodes)
        if self.accept(replace(self.draft, nodes=plain), "no gradients"):
            return
        self.accept(replace(self.draft, nodes=(*plain[:-1], nodes[-1])), "no gradients of earlier calls")
        for name in differentiated(self.draft).values():
            *earlier, last = self.draft.nodes
            last = replace(last, frozen=[*last.frozen, name])
            self.accept(replace(self.draft, nodes=(*earlier, last)), f"no gradient of {name}")

    # ---- fewer calls ----

    def _nodes(self):
        while len(self.draft.nodes) > 1:
            made = self.pair.values(self.draft.materialised(self.pair.folder / "inputs"))
            smaller = [self._cut(place, made) for place in range(len(self.draft.nodes) - 1)]
            smaller += [self._bypass(place) for place in range(len(self.draft.nodes) - 1)]
            alone = self._cut_all(made)
            order = sorted(filter(None, [*alone, *smaller]), key=lambda draft: draft.size)
            step = f"fewer calls than {len(self.draft.nodes)}"
            if not any(self.accept(draft, step) for draft in order):
                return

    def _cut(self, place, made, replaced=None):
        """Without one node: what it handed on becomes an input."""
        values = {}

        def fixed(form):
            if "$from" not in form or form["$from"][0] not in (replaced or {place}):
                return form
            node, output = form["$from"]
            name = f"{len(self.draft.nodes)}.{node}.{output}"
            values[name] = Value.stored(made[node, output])
            return {"$load": [name]}

        try:
            draft = self.draft.changed(fixed)
        except KeyError:  # the reference did not get that far
            return None
        return draft.with_values(values).pruned()

    def _cut_all(self, made):
        """The last node alone."""
        found = self._cut(None, made, set(range(len(self.draft.nodes) - 1)))
        return [found] if found else []

    def _bypass(self, place):
        """Without one node: its first tensor takes the place of its first output."""
        tensors = tensors_of(self.draft.nodes[place])
        if not tensors:
            return None
        return self.draft.changed(lambda form: tensors[0] if form.get("$from") == [place, 0] else form).pruned()

    # ---- simpler arguments ----

    def _arguments(self):
        for place in range(len(self.draft.nodes)):
            while self._without_last(place):
                pass
            for position in range(len(self.draft.nodes[place].arguments)):
                self._simpler(place, position)

    def _without_last(self, place):
        node = self.draft.nodes[place]
        if len(node.arguments) < 2:
            return False
        return self.accept(self._with(place, node.arguments[:-1]), f"{node.api} without {node.arguments[-1][0]}")

    def _simpler(self, place, position):
        node = self.draft.nodes[place]
        name, form, kind = node.arguments[position]
        tensor = isinstance(form, dict) and ("$load" in form or "$from" in form)
        if tensor and position:
            simpler = [None]
        elif isinstance(form, int) and not isinstance(form, bool) and form > 1:
            simpler = [1]
        elif isinstance(form, (list, dict)) and (ones := _ones(form)) != form:
            simpler = [ones]
        else:
            return
        for other in simpler:
            arguments = [[*a] for a in node.arguments]
            arguments[position] = [name, other, kind]
            self.accept(self._with(place, arguments), f"{node.api} with {name} {'left out' if other is None else '1'}")

    def _with(self, place, arguments):
        nodes = list(self.draft.nodes)
        nodes[place] = replace(nodes[place], arguments=arguments)
        return replace(self.draft, nodes=tuple(nodes)).pruned()

    # ---- smaller shapes ----

    def _shapes(self):
        sizes = {size for value in self.draft.values.values() for size in value.shape if size > 1}
        for size in sorted(sizes, reverse=True):
            self._smaller(size, None)
        for name in sorted(self.draft.values, key=lambda name: -self.draft.values[name].numel):
            for dim, size in enumerate(self.draft.values[name].shape):
                if size > 1:
                    self._smaller(size, (name, dim))
        firsts = {value.shape[0] for value in self.draft.values.values() if value.shape and value.shape[0] > 1}
        for size in sorted(firsts, reverse=True):  # a batch, which other dimensions may equal by chance
            self._smaller(size, (None, 0))

    def _smaller(self, size, where):
        for new in _halves(size):
            if self.accept(self._resized(size, new, where), f"{new} instead of {size}"):
                return

    def _resized(self, size, new, where):
        """With one size replaced: everywhere, arguments included; or in one dimension of one input, or of all."""
        changes = {}
        for name, value in self.draft.values.items():

            def chosen(dim, name=name):
                return where is None or (where[0] in (None, name) and where[1] == dim)

            shape = tuple(new if old == size and chosen(dim) else old for dim, old in enumerate(value.shape))
            if shape != value.shape:
                changes[name] = value.resized(shape)
        draft = self.draft.with_values(changes)
        if where is None:
            nodes = tuple(replace(node, arguments=[[n, _swapped(f, size, new), k] for n, f, k in node.arguments])
                          for node in draft.nodes)  # fmt: skip
            draft = replace(draft, nodes=nodes)
        return draft

    # ---- simpler values ----

    def _values(self):
        for place, name in enumerate(sorted(self.draft.values, key=lambda name: -self.draft.values[name].numel)):
            value = self.draft.values[name]
            if value.strides != (plain := value.contiguous()).strides:
                self.accept(self.draft.with_values({name: plain}), f"{name} contiguous")
            value = self.draft.values[name]
            for simpler in simpler_values(value, place):
                if self.accept(self.draft.with_values({name: simpler}), f"{name} {simpler.kind}"):
                    break


class _TimeOver(Exception):
    pass


def _beyond(row) -> bool:
    """Whether an error is beyond what even the conditioning of the call excuses: a smaller case must not lose that."""
    ratios = [row.get(f"{side}_ratio") or 0.0 for side in SIDES]
    return max(ratios) > 1


def _key(draft) -> str:
    return repr((draft.nodes, [(name, value.key) for name, value in sorted(draft.values.items())]))


def _halves(size) -> list[int]:
    """Smaller sizes, the smallest first: powers of two, and the half."""
    powers = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    return sorted({*powers, size // 2} - {0, size})


def _ones(form):
    """The same form with all whole numbers above 1 as 1, at any depth; shapes are not told from other numbers."""
    if isinstance(form, bool):
        return form
    if isinstance(form, int):
        return min(form, 1)
    if isinstance(form, list):
        return [_ones(item) for item in form]
    if isinstance(form, dict) and set(form) == {"$tuple"}:
        return {"$tuple": [_ones(item) for item in form["$tuple"]]}
    return form


def _swapped(form, old, new):
    """The form with one whole number replaced by another, outside tensors."""
    if isinstance(form, bool):
        return form
    if isinstance(form, int):
        return new if form == old else form
    if isinstance(form, list):
        return [_swapped(item, old, new) for item in form]
    if isinstance(form, dict):
        if "$load" in form or "$from" in form:
            return form
        return {tag: _swapped(content, old, new) for tag, content in form.items()}
    return form
