"""RQ4: methods on known faults, with equally many calls."""

import shutil

import pandas as pd
import pytest
from typer.testing import CliRunner

from sortlib import cli, seeded_faults, tables
from sortlib.baselines.base import Call, build
from sortlib.errors import SortError
from sortlib.simdev import build as simdev_build
from sortlib.simdev.catalogue import FAULTS
from sortlib.study import Study

built = pytest.mark.skipif(bool(simdev_build.missing()), reason=simdev_build.missing())


def attempt(method, variant, number, calls=1):
    relu = Call("torch.nn.functional.relu", ())
    return build(method, variant, "relu", number, [relu] * calls, 0)


def crashed(case, node, api, side="candidate", run="sort"):
    row = {
        "case": case,
        "node": node,
        "api": api,
        "pattern": "p",
        "status": "crash",
        "side": side,
        "message": "SIGSEGV",
    }
    return {**row, "reference": "cpu", "candidate": "simdev", "run": run, "seconds": 1.0, "local_differing": 0.0}


def compared(study, faulty, clean):
    alarms = seeded_faults._alarms(study, pd.DataFrame(clean), [])
    found = seeded_faults._compare(study, FAULTS["relu-last-element"], pd.DataFrame(faulty), alarms, [])
    return {row["rule"]: row for row in found}


@built
def test_a_fault_of_linear_is_found_blamed_and_kept(tiny_study, tmp_path, monkeypatch):
    study = Study(shutil.copytree(tiny_study.directory, tmp_path / "tiny"))
    # A bias that is added twice is no rounding, and the transformer's linear layers have one.
    results = seeded_faults.seeded_faults(study, ["linear-bias-twice"], budget=8, methods=[], progress=False)
    by_rule = results.set_index(["method", "rule"])
    for method in ("SORT", "Single-API"):
        row = by_rule.loc[(method, "evidence")]
        assert row["found"] and row["blamed"] and row["accused"] == "linear" and row["alarms"] == 0
        assert 1 <= row["attempts"] <= row["calls"] <= 8 and row["seconds"] > 0
    # Its wrong values reach later calls, so the paper's rule, which compares what has propagated, accuses them too.
    assert by_rule.loc[("SORT", "paper"), "found"]

    monkeypatch.setattr(seeded_faults, "campaign", lambda *given, **named: pytest.fail("run a second time"))
    again = seeded_faults.seeded_faults(study, ["linear-bias-twice"], budget=8, methods=[], progress=False)
    assert again.equals(results)
    table = tables.seeded_faults(Study(study.directory)).set_index("api")
    assert table.loc[["linear", "Total"], "SORT_evidence_blamed"].tolist() == [1, 1]
    assert table.loc["relu", "faults"] == table.loc["relu", "SORT_evidence_found"] == "/"
    assert any("8 executed calls" in note for note in table.attrs["footnotes"])
    rows = tables.rows_of(Study(study.directory), "seeded_faults", "linear", "SORT_evidence_blamed")
    assert set(rows["api"]) == {"linear"} and set(rows["fault"]) == {"linear-bias-twice"}
    assert tables.rows_of(study, "seeded_faults", "linear", "SORT_evidence_alarms").empty


def test_a_budget_is_spent_whole_and_rare_patterns_have_a_footnote(tiny_study, tmp_path):
    source = seeded_faults._Source(tiny_study, 12, [], tmp_path)
    frequent = next(api for api in ("linear", "add", "flatten") if any(api in p.nodes for p in tiny_study.patterns))
    assert not any("softmax" in pattern.nodes for pattern in tiny_study.patterns)  # one of the two models calls it
    for api, rare in ((frequent, False), ("softmax", True)):
        made = source.attempts(api)
        assert made["rare"] is rare
        for run in ("sort", "single"):
            cases = made["cases"][run]
            assert all(api in [node.api for node in case.nodes] for case in cases)
            assert 12 - 3 <= sum(len(case.nodes) for case in cases) <= 12, run  # no room for a further case
    results = pd.DataFrame(columns=seeded_faults.COLUMNS)
    results.loc[0] = ["SORT", "evidence", "softmax-bf16", "softmax", True, True, "softmax", 0, 4, 12, 1.0]
    results.attrs.update(absent={}, rare=["softmax"])
    notes = tables.rq4._notes({"budget": 12}, results, 2)
    assert any(note.startswith("SORT: softmax: in no pattern that 2 models share, so it was run on rare ones")
               for note in notes)  # fmt: skip


def test_a_study_without_it_shows_nothing(tiny_study):
    table = tables.seeded_faults(tiny_study)
    assert set(table["faults"]) == {"/"}
    assert table.attrs["footnotes"] == ["/: not run yet; 'sortlib faults STUDY' runs it"]


def test_what_the_clean_device_shows_as_well_is_not_found(tiny_study):
    before = [crashed("one", 0, "relu"), crashed("two", 0, "relu", side="")]
    before[1]["status"] = "unreached"
    rule = compared(tiny_study, before, before)["evidence"]
    assert (rule["found"], rule["blamed"], rule["alarms"]) == (False, False, 1)
    after = [before[0], crashed("two", 0, "relu")]
    rule = compared(tiny_study, after, before)["evidence"]
    assert (rule["found"], rule["blamed"], rule["alarms"]) == (True, True, 1)
    rule = compared(tiny_study, [*after, crashed("two", 1, "add")], before)["evidence"]
    assert (rule["found"], rule["blamed"], rule["accused"]) == (True, False, "add, relu")


def test_two_apis_that_disagree_are_both_accused():
    class Method:
        key = "deeprel"

        def verdicts(self, rows, variant):
            return pd.DataFrame({"case": ["a"], "api": ["relu"], "paper": ["fail"]})

    rows = pd.DataFrame({"case": ["a", "a", "a"], "api": ["relu", "clamp", "isclose"]})
    assert seeded_faults._by_oracle(Method(), "V", rows) == [("a", 0, ("relu", "clamp"))]
    Method.key = "docter"
    assert seeded_faults._by_oracle(Method(), "", rows) == [("a", 0, ("relu",))]


def test_the_device_stands_where_an_oracle_looks_and_a_dead_process_ends_the_search(monkeypatch):
    attempts = {run: [attempt(*run.split("-"), number) for number in range(3)] for run in ("freefuzz-C", "freefuzz-P")}
    attempts["deeprel-V"] = []  # no attempt fits into the budget
    seen = []

    def campaign(cases, reference, candidate, timeout, versions):
        versions.update({})
        for case in cases:
            seen.append((case.pattern, reference, candidate))
            side = "candidate" if candidate.startswith("simdev") else "reference"
            # The first method's own process ends on the device; the second's on the other side, which proves nothing.
            other = {"candidate": "reference", "reference": "candidate"}[side]
            yield case, [crashed(case.id, 0, "relu", side if case.pattern == "freefuzz-C-relu" else other)]

    monkeypatch.setattr(seeded_faults, "campaign", campaign)
    survived = {case.id for cases in attempts.values() for case in cases}
    rows = seeded_faults._run(attempts, "simdev:relu-last-element", 5, survived)
    assert seen == [("freefuzz-C-relu", "cpu", "simdev:relu-last-element")] + [
        ("freefuzz-P-relu", "simdev:relu-last-element", "cpu")] * 3  # fmt: skip
    assert rows["run"].tolist() == ["freefuzz-C"] + ["freefuzz-P"] * 3
    # What ends the clean device as well is not the fault's doing, so the search goes on.
    rows = seeded_faults._run(attempts, "simdev:relu-last-element", 5, survived - {rows["case"][0]})
    assert rows["run"].tolist() == ["freefuzz-C"] * 2 + ["freefuzz-P"] * 3
    assert seeded_faults._survived(rows.assign(status=["crash", *["ok"] * 4])) == survived - {
        attempts["freefuzz-C"][0].id, attempts["freefuzz-C"][2].id}  # fmt: skip


def test_every_call_of_an_attempt_counts_and_every_attempt_once():
    cases = [attempt("deeprel", "V", 0, 3), attempt("deeprel", "V", 0, 3), attempt("deeprel", "V", 1, 3),
             attempt("deeprel", "V", 2, 2)]  # fmt: skip
    assert seeded_faults._within(cases, 5) == [cases[0], cases[3]]
    assert seeded_faults._within(cases, 8) == [cases[0], cases[2], cases[3]]


def test_mistakes_are_one_clear_line(tiny_study):
    for given, message in (
        ({"faults": ["linear-bf61"]}, "no fault 'linear-bf61'; did you mean 'linear-bf16'"),
        ({"methods": ["fuzz"]}, "unknown method 'fuzz'; valid: "),
        ({"budget": 0}, "budget: must be a whole number of calls above 0, not 0"),
    ):
        with pytest.raises(SortError, match=message):
            seeded_faults.seeded_faults(tiny_study, **given, progress=False)


def test_the_command_lists_faults_and_needs_a_study():
    listed = CliRunner().invoke(cli.app, ["faults", "--list"])
    assert listed.exit_code == 0 and len(listed.output.splitlines()) == len(FAULTS)
    assert "relu-hang" in listed.output
    missing = CliRunner().invoke(cli.app, ["faults"])
    assert isinstance(missing.exception, SortError) and "name the directory of a study" in str(missing.exception)
