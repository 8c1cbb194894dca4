"""Looking into a study by hand: choose a pattern and a case, see its graph, records and differences."""

from __future__ import annotations

from sortlib import details, figures
from sortlib.tables.frames import Shown


def explore(study, pattern_id: str = "", case_id: str = "") -> Explorer:
    """An explorer of a study with at least its cases run; a notebook shows it as two menus with pictures below.

    Parameters
    ----------
    pattern_id : pattern to start with; that of the case, or one with a join, if not given.
    case_id : case to start with; the most telling one of the pattern if not given.

    Raises
    ------
    SortError
        No such pattern or case.
    """
    if not pattern_id:
        pattern_id = study.case(case_id).pattern if case_id else details.example_pattern(study)
    return Explorer(study, pattern_id, case_id)


class Explorer:
    """A choice of pattern and case, with what there is to see of them.

    The pictures are ordinary notebook outputs, so they stay in a notebook that is executed without a browser; a
    menu replaces them in place.

    Attributes
    ----------
    pattern_id, case_id : the present choice; ``case_id`` is empty where the pattern was mined but not tested.
    """

    def __init__(self, study, pattern_id: str, case_id: str = ""):
        self.study = study
        self._cases = details.cases(study)
        self._outputs = {}
        self._menus = None
        self.choose(pattern_id, case_id)

    def choose(self, pattern_id: str, case_id: str = ""):
        """Go to a pattern, and to one of its cases (the most telling one if not given)."""
        pattern = self.study.pattern(pattern_id)
        own = self.case_ids(pattern_id)
        if case_id and case_id not in own:
            # Names the case if it does not exist, and otherwise follows it to its own pattern.
            pattern = self.study.pattern(self.study.case(case_id).pattern)
        self.pattern_id, self.case_id = pattern.id, case_id or (own[0] if own else "")
        if self._outputs:
            for name, view in self.views().items():
                self._outputs[name].update(view)

    def case_ids(self, pattern_id: str) -> list[str]:
        """The executed cases of a pattern, most telling first."""
        return list(self._cases.loc[self._cases["pattern"] == pattern_id, "case"])

    def views(self) -> dict:
        """What is shown, by name: graph, occurrences, records, inputs, heatmap, differences."""
        records = details.pattern_records(self.study, self.pattern_id)
        found = {
            "graph": figures.pattern(self.study.pattern(self.pattern_id)),
            "occurrences": _titled("Where it occurs", details.occurrences(self.study, self.pattern_id)),
            "records": _titled("What was recorded there", details.arguments(records)),
        }
        if not self.case_id:
            untested = Shown(self._cases.iloc[:0], ("this pattern was mined but not tested in this study",))
            return {**found, "inputs": untested, "heatmap": untested, "differences": untested}
        return {
            **found,
            "inputs": _titled("Inputs of the case", details.inputs(self.study.case(self.case_id))),
            "heatmap": figures.amplification(self.study, self.case_id),
            "differences": _titled("What was measured", details.calls(self.study, self.case_id)),
        }

    def _ipython_display_(self):
        from IPython.display import display

        display(self._make_menus())
        self._outputs = {name: display(view, display_id=True) for name, view in self.views().items()}

    def _make_menus(self):
        from ipywidgets import Dropdown, VBox

        rows = details.patterns(self.study).to_dict("records")
        names = [(f"{row['pattern']}: {row['calls']} (support {row['support']}, {row['cases']} cases)", row["pattern"])
                 for row in rows]  # fmt: skip
        patterns = Dropdown(options=names, value=self.pattern_id, description="Pattern", layout={"width": "60em"})
        cases = Dropdown(options=self.case_ids(self.pattern_id) or [""], value=self.case_id, description="Case")

        def pattern_chosen(change):
            if change["new"] != self.pattern_id:
                self.choose(change["new"])
                cases.options = self.case_ids(self.pattern_id) or [""]

        def case_chosen(change):
            if change["new"] and change["new"] != self.case_id:
                self.choose(self.pattern_id, change["new"])

        patterns.observe(pattern_chosen, "value")
        cases.observe(case_chosen, "value")
        self._menus = VBox([patterns, cases])
        return self._menus


def _titled(title, table):
    return Shown(table, tuple(table.attrs["footnotes"]), title)
