"""Tables, on outcomes made by hand whose right answers can be counted, and on a real study."""

import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from sortlib import details, published, tables
from sortlib.apis import PAPER_APIS
from sortlib.errors import SortError
from sortlib.graph import ApiGraph, Edge, Pattern
from sortlib.pipeline import complete
from sortlib.study import Study, StudyConfig, load_config

# What the runner measures of a call on which both platforms agree in every bit.
AGREEING = {
    "local_max_abs": 0.0, "local_differing": 0.0, "local_one_sided": 0.0, "local_scale_ulp": 0.0,
    "propagated_max_abs": 0.0, "propagated_differing": 0.0, "propagated_one_sided": 0.0, "incoming": 0.0,
    "reference_error": 0.0, "candidate_error": 0.0, "reference_ratio": 0.0, "candidate_ratio": 0.0,
    "reference_nan": 0.0, "candidate_nan": 0.0, "truth_finite_lost": 0.0, "nan_inputs": False, "truth_missing": "",
}  # fmt: skip


def call(case, node, api, **measured):
    """An outcome of one call; everything agrees unless given. A failed call has no measurements."""
    failed = measured.get("status", "ok") != "ok"
    row = {
        "case": case, "pattern": "p" + case, "node": node, "api": api, "reference": "cpu", "candidate": "other",
        "module_path": "", "random": False, "entry": False, "status": "ok", "side": "", "message": "",
    }  # fmt: skip
    return {**row, **(dict.fromkeys(AGREEING) if failed else AGREEING), **measured}


def differing(case, node, api, propagated, local=0.0, **more):
    """A call whose outputs differ."""
    return call(case, node, api, propagated_max_abs=propagated, propagated_differing=0.5, local_max_abs=local,
                local_differing=0.5 if local else 0.0, **more)  # fmt: skip


def study_of(sort, single=(), edges=None, apis=(), threshold=1e-3):
    """A study in memory: outcomes by hand, one graph that calls ``apis`` and those of the outcomes."""
    columns = list(call("", 0, ""))
    study = Study.__new__(Study)
    study.directory = Path("by-hand")
    study.config = StudyConfig(name="by-hand", zoo="tiny", threshold=threshold)
    study.manifest = {"stages": {"generate": {"without_case": {}, "patterns_mined": 1, "patterns_tested": 1}}}
    called = sorted({row["api"] for row in (*sort, *single)} | set(apis))
    study.__dict__.update(
        outcomes=pd.DataFrame(list(sort), columns=columns),
        single=pd.DataFrame(list(single), columns=columns),
        graphs=[ApiGraph.from_edges(called, [])],
        patterns=[],
        cases=[SimpleNamespace(id=case, pattern="p" + case, edges=e) for case, e in (edges or {}).items()],
    )
    return study


def cell(table, api, column):
    return table.set_index("api").loc[api, column]


class TestValidity:
    """RQ1: attempts are all calls that were handed an input; valid ones returned on the reference platform."""

    # Attempts on conv2d: ok, failed on the candidate only, refused by both, crash of the reference = 4, 2 of them
    # valid. The fifth call was never reached.
    ROWS = [
        call("a", 0, "conv2d"),
        call("b", 0, "conv2d", status="exception", side="candidate", message="RuntimeError: not implemented"),
        call("c", 0, "conv2d", status="exception", side="both", message="RuntimeError: expected 3 channels, got 4"),
        call("d", 0, "conv2d", status="crash", side="reference", message="signal 11"),
        call("e", 0, "relu"),
        call("d", 1, "conv2d", status="unreached", message="an earlier call gave no result"),
    ]

    @pytest.fixture
    def study(self):
        return study_of(self.ROWS, single=[call("s", 0, "relu")], apis=["gelu"])

    def test_counts_every_attempt(self, study):
        table = tables.validity(study)
        assert cell(table, "conv2d", "sort_attempts") == 4
        assert cell(table, "conv2d", "sort_valid") == 2
        assert cell(table, "conv2d", "sort_ratio") == 50.0
        assert cell(table, "Total", "sort_attempts") == 5
        assert cell(table, "Total", "sort_valid") == 3
        assert cell(table, "Total", "sort_ratio") == 60.0
        assert cell(table, "Total", "single_ratio") == 100.0

    def test_says_why_an_attempt_was_invalid(self, study):
        reasons = cell(tables.validity(study), "conv2d", "sort_reasons")
        assert reasons == "1 x RuntimeError: expected # channels, got #; 1 x signal #"

    def test_rows_are_the_papers_fifteen_tested_ones_first_and_a_total(self, study):
        untested = [api for api in PAPER_APIS if api not in ("conv2d", "relu")]
        assert list(tables.validity(study)["api"]) == ["relu", "conv2d", *untested, "Total"]
        assert list(tables.validity(study, "tested")["api"]) == ["conv2d", "relu", "Total"]
        assert list(tables.validity(study, ["relu"])["api"]) == ["relu", "Total"]

    def test_an_api_without_attempts_has_a_slash_and_a_reason(self, study):
        table = tables.validity(study)
        notes = table.attrs["footnotes"]
        for api in ("gelu", "softmax"):
            assert cell(table, api, "sort_attempts") == cell(table, api, "sort_ratio") == "/"
        assert any("gelu" in note and "in no pattern that 5 models share" in note for note in notes)
        assert any("softmax" in note and "not called by the traced models" in note for note in notes)
        slashed = table.loc[table["sort_attempts"] == "/", "api"]
        assert all(any("SORT" in note and api in note for note in notes) for api in slashed)

    def test_unreached_calls_are_mentioned(self, study):
        assert (
            "SORT: 1 calls are no attempts, since an earlier call gave no result"
            in (tables.validity(study).attrs["footnotes"])
        )

    def test_attempts_on_other_apis_are_mentioned(self):
        study = study_of([call("a", 0, "cat"), call("b", 0, "relu")])
        table = tables.validity(study)
        assert cell(table, "Total", "sort_attempts") == 1
        assert "SORT: 1 APIs not listed were tested too: 1 attempts, 1 valid" in table.attrs["footnotes"]

    def test_published_ratios_stand_beside(self, study):
        table = tables.validity(study)
        assert cell(table, "conv2d", "paper_FreeFuzz-C") == 12.04
        assert cell(table, "gelu", "paper_DocTer") == "/"
        assert cell(table, "Total", "paper_SORT") == 100.0

    def test_invalid_lists_each_kind_with_an_example(self, study):
        table = tables.invalid(study)
        assert list(table["kind"]) == ["RuntimeError: expected # channels, got #", "signal #"]
        assert list(table["attempts"]) == [1, 1]
        assert list(table["side"]) == ["both", "reference"]
        assert table["example"][0] == "RuntimeError: expected 3 channels, got 4"

    def test_unknown_api_is_one_clear_line(self, study):
        with pytest.raises(SortError, match="API 'conv9d' is in no model of this study"):
            tables.validity(study, ["conv9d"])


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        # Figures 10 to 12 of the paper.
        ("RuntimeError: clamp is not supported for complex types",
         "RuntimeError: clamp is not supported for complex types"),
        ("RuntimeError: dropout probability has to be between 0 and 1, but got -6.04427e+16",
         "RuntimeError: dropout probability has to be between # and #, but got #"),
        ("RuntimeError: shape '[1, 3, 1, 2]' is invalid for input of size 3",
         "RuntimeError: shape '...' is invalid for input of size #"),
        ("IndexError: Dimension out of range (expected to be in range of [-2, 1], but got 2)",
         "IndexError: Dimension out of range (expected to be in range of [...], but got #)"),
        ("ValueError: conv2d got float16", "ValueError: conv2d got float16"),
    ],
)  # fmt: skip
def test_message_kind_drops_particulars(message, kind):
    assert tables.message_kind(message) == kind


class TestBugs:
    """RQ2: the paper's rule counts calls beyond 1e-3; the evidence rule accuses only beyond the rounding bound."""

    ROWS = [
        differing("a", 0, "linear", propagated=0.5, local=0.5, reference_error=0.01, candidate_error=0.5,
                  reference_ratio=0.1, candidate_ratio=5.0),
        differing("b", 0, "linear", propagated=2e-3, local=2e-3, reference_error=1e-3, candidate_error=1e-3,
                  reference_ratio=0.5, candidate_ratio=0.5),
        differing("c", 0, "linear", propagated=1e-3, local=1e-3, reference_ratio=0.5, candidate_ratio=0.5),
        call("d", 0, "linear", propagated_one_sided=0.25, local_one_sided=0.25, candidate_nan=0.25),
        call("e", 0, "linear", status="exception", side="both", message="RuntimeError: refused"),
        call("f", 0, "linear", status="crash", side="candidate", message="signal 11"),
        differing("a", 1, "gelu", propagated=0.6, local=0.0, incoming=0.5),
    ]  # fmt: skip

    @pytest.fixture
    def study(self):
        return study_of(self.ROWS, single=[call("s", 0, "linear")])

    def test_paper_rule_counts_calls_by_symptom(self, study):
        table = tables.paper_rule(study)
        # a and b are above 1e-3, c is not; an exception on both sides is an invalid input and no bug.
        assert cell(table, "linear", "sort_precision") == 2
        assert cell(table, "linear", "sort_nan") == 1
        assert cell(table, "linear", "sort_crash") == 1
        assert cell(table, "gelu", "sort_precision") == 1
        assert cell(table, "Total", "sort_precision") == 3
        assert cell(table, "linear", "sort_distinct") == 3
        assert cell(table, "Total", "sort_distinct") == 4
        assert cell(table, "linear", "single_precision") == 0

    def test_performance_is_said_to_be_not_measured(self, study):
        table = tables.bugs(study)
        assert set(table["sort_perf"]) == set(table["single_perf"]) == {"/"}
        assert any(note.startswith("perf: not measured") for note in table.attrs["footnotes"])

    def test_evidence_rule_counts_verdicts_and_findings(self, study):
        table = tables.evidence_rule(study)
        assert cell(table, "linear", "sort_evidence_suspect") == 1  # a: 5 times its bound, 50 times the other's error
        assert cell(table, "linear", "sort_evidence_rounding") == 2
        assert cell(table, "linear", "sort_evidence_nan") == 1
        assert cell(table, "linear", "sort_evidence_exception") == 1
        assert cell(table, "linear", "sort_evidence_crash") == 1
        assert cell(table, "linear", "sort_evidence_findings") == 3  # suspect, nan, crash; both sides refused e
        assert cell(table, "gelu", "sort_evidence_amplified") == 1
        assert cell(table, "gelu", "sort_evidence_findings") == 0  # amplification accuses nobody
        assert cell(table, "Total", "sort_evidence_findings") == 3
        assert cell(table, "linear", "single_evidence_identical") == 1

    @pytest.mark.parametrize(("side", "accused"), [("reference", 1), ("candidate", 1), ("both", 0)])
    def test_an_exception_accuses_only_if_one_side_raised_it(self, side, accused):
        study = study_of([call("a", 0, "linear", status="exception", side=side, message="RuntimeError: refused")])
        table = tables.evidence_rule(study)
        assert cell(table, "linear", "sort_evidence_exception") == 1
        assert cell(table, "linear", "sort_evidence_findings") == accused
        assert len(tables.accusing(study)) == accused

    def test_a_method_without_any_attempt_has_slashes_and_the_manifests_reason(self, tmp_path):
        study = study_of(self.ROWS)
        study.config = study.config.model_copy(update={"methods": ["titanfuzz"]})
        study.directory = tmp_path  # holds no outcomes
        study.__dict__["baseline_cases"] = {}
        reason = "needs a language model"
        study.manifest["stages"]["baselines"] = {
            "methods": {"titanfuzz": {"absent": dict.fromkeys(PAPER_APIS, reason), "missing": "a language model"}}
        }
        for make, column in ((tables.validity, "attempts"), (tables.bugs, "crash"), (tables.bugs, "evidence_findings")):
            for apis in (None, "tested"):
                table = make(study, apis)
                assert set(table[f"titanfuzz_{column}"]) == {"/"}
                assert any(note.startswith("TitanFuzz: no attempt on") and note.endswith(reason)
                           for note in table.attrs["footnotes"])  # fmt: skip
        assert set(tables.invalid(study)["method"]) == {"SORT"}

    def test_every_attempt_has_one_verdict(self, study):
        table = tables.evidence_rule(study)
        verdicts = [c for c in table if c.startswith("sort_evidence_") and c != "sort_evidence_findings"]
        assert table.set_index("api").loc["Total", verdicts].sum() == len(self.ROWS)

    def test_published_counts_stand_beside(self, study):
        table = tables.bugs(study)
        assert cell(table, "linear", "paper_SORT_precision") == 1258
        assert cell(table, "linear", "paper_TitanFuzz_crash") == "/"
        assert cell(table, "Total", "paper_FreeFuzz_perf") == 267


class TestInteractions:
    """RQ3: Figure 13."""

    def test_average_is_over_valid_executions(self):
        rows = [
            differing("a", 0, "relu", propagated=1e-4),
            differing("b", 0, "relu", propagated=3e-4),
            call("c", 0, "relu", propagated_max_abs=None),  # the candidate's chain broke: no value
            call("d", 0, "relu", status="exception", side="both", message="refused"),
        ]
        table = tables.average_difference(study_of(rows, single=[differing("s", 0, "relu", propagated=2e-5)]))
        assert cell(table, "relu", "sort") == pytest.approx(2e-4)
        assert cell(table, "relu", "single") == pytest.approx(2e-5)
        assert math.isnan(cell(table, "conv2d", "sort"))
        assert list(table.columns) == ["api", "paper_name", "sort", "single"]
        assert list(table["paper_name"]) == ["relu", *(name for name in PAPER_APIS.values() if name != "relu")]

    def test_a_call_is_involved_by_what_it_feeds_however_indirectly(self):
        # conv2d -> batch_norm -> relu, only the last beyond the threshold; dropout hangs beside and feeds nothing.
        rows = [
            call("a", 0, "conv2d"),
            differing("a", 1, "batch_norm", propagated=5e-4),
            differing("a", 2, "relu", propagated=2e-3),
            call("a", 3, "dropout"),
            call("b", 0, "conv2d"),
            call("b", 1, "batch_norm"),
        ]
        edges = {"a": [(0, 1, "input"), (1, 2, "input"), (0, 3, "input")], "b": [(0, 1, "input")]}
        table = tables.involvement(study_of(rows, edges=edges))
        assert cell(table, "conv2d", "sort") == 0.5  # in one of its two executions
        assert cell(table, "batch_norm", "sort") == 0.5
        assert cell(table, "relu", "sort") == 1.0
        assert cell(table, "dropout", "sort") == 0.0
        assert math.isnan(cell(table, "gelu", "sort"))

    def test_involvement_goes_up_and_never_down(self):
        rows = [differing("a", 0, "linear", propagated=1.0), differing("a", 1, "dropout", propagated=1e-4)]
        table = tables.involvement(study_of(rows, edges={"a": [(0, 1, "input")]}))
        assert cell(table, "linear", "sort") == 1.0
        assert cell(table, "dropout", "sort") == 0.0

    def test_both_branches_of_a_join_are_involved(self):
        rows = [call("a", 0, "relu"), call("a", 1, "gelu"), differing("a", 2, "add", propagated=0.1)]
        table = tables.involvement(study_of(rows, edges={"a": [(1, 2, "operand"), (0, 2, "operand")]}))
        assert [cell(table, api, "sort") for api in ("relu", "gelu", "add")] == [1.0, 1.0, 1.0]

    def test_threshold_is_the_studys_and_itself_allowed(self):
        rows = [differing("a", 0, "relu", propagated=0.01), differing("b", 0, "relu", propagated=0.02)]
        study = study_of(rows, single=[differing("s", 0, "relu", propagated=0.03)], threshold=0.01)
        table = tables.involvement(study)
        assert cell(table, "relu", "sort") == 0.5
        assert cell(table, "relu", "single") == 1.0


class TestPublished:
    """The paper's numbers as they are printed there."""

    def test_table_1(self):
        table = published.table1()
        assert list(table.index) == [*PAPER_APIS, "Total"]
        assert len(table.columns) == 9
        assert table.loc["mul", "TitanFuzz"] == 47.42
        assert (table["SORT"] == 100.0).all()
        # Section V-A: DeepREL can test 8 of the APIs.
        tested = table.drop("Total")[["DeepREL-S", "DeepREL-V"]].notna().any(axis=1)
        assert tested.sum() == 8

    @pytest.mark.parametrize("method", ["FreeFuzz-C", "DeepREL-S", "DeepREL-V", "TitanFuzz"])
    def test_totals_of_table_1_are_ratios_over_all_inputs(self, method):
        # 1,000 valid inputs per API (section V-A); rows are rounded to 0.01.
        column = published.table1()[method].dropna()
        rows = column.drop("Total")
        assert 100 * len(rows) / (100 / rows).sum() == pytest.approx(column["Total"], abs=0.01)

    def test_table_2_sums_to_its_total_but_for_freefuzz(self):
        table = published.table2()
        gap = table.drop("Total").sum() - table.loc["Total"]
        assert gap[gap != 0].to_dict() == {"FreeFuzz_perf": 1.0}  # 268 in the rows, 267 printed
        assert table.loc["Total", "SORT_precision"] == 3376


class TestSubjects:
    def test_patterns_by_size(self):
        study = study_of([])
        join = Pattern("p2", ("relu", "gelu", "add"), (Edge(0, 2, "operand"), Edge(1, 2, "operand")), 3, (0, 1, 2))
        chain = Pattern("p1", ("conv2d", "relu"), (Edge(0, 1, "input"),), 5, (0, 1, 2, 3, 4))
        study.__dict__["patterns"] = [chain, join]
        table = tables.patterns(study).set_index("nodes")
        assert table["patterns"].to_dict() == {2: 1, 3: 1, "Total": 2}
        assert table["with_join"].to_dict() == {2: 0, 3: 1, "Total": 1}
        assert table.loc["Total", ["support_min", "support_median", "support_max"]].tolist() == [3, 4, 5]
        assert tables.support(study).to_dict("list") == {"support": [3, 5], "patterns": [1, 1], "with_join": [1, 0]}

    def test_no_pattern_at_all(self):
        table = tables.patterns(study_of([]))
        assert table.to_dict("list")["nodes"] == ["Total"]
        assert table["patterns"].tolist() == [0]

    def test_models_count_joins_by_distinct_producers(self):
        study = study_of([])
        # mul takes one tensor twice, which is no join; add takes two.
        study.__dict__["graphs"] = [ApiGraph.from_edges(
            ["relu", "gelu", "mul", "add"],
            [(0, 2, "operand"), (0, 2, "operand"), (1, 3, "operand"), (2, 3, "operand")], name="m",
        )]  # fmt: skip
        study.__dict__["records"] = []
        row = tables.models(study).iloc[0].to_dict()
        assert row == {"model": "m", "calls": 4, "edges": 4, "apis": 4, "joins": 1, "samples": 0, "records": 0}


class TestShow:
    TABLE = pd.DataFrame({"api": ["relu"], "paper_name": ["relu"], "sort_a": [1 / 3], "paper_b": [float("nan")]})

    def test_footnotes_of_columns_that_are_left_out_are_too(self):
        columns = ["api", "sort_valid", "single_valid", "deeprel-V_valid", "paper_SORT"]
        table = pd.DataFrame([["add", 1, 1, "/", 1]], columns=columns)
        about = {"SORT: a": "sort_", "Single-API: b": "single_", "DeepREL-V and DeepREL-S: c": "deeprel-V_",
                 "DeepREL: d": "deeprel-V_", "paper_*: e": "paper_"}  # fmt: skip
        table.attrs["footnotes"] = [*about, "intervals: of every column", "no colon"]
        assert tables.show(table).footnotes == tuple(table.attrs["footnotes"])
        for start in set(about.values()):
            wanted = [note for note, about_column in about.items() if about_column == start]
            assert tables.show(table, start).footnotes == (*wanted, "intervals: of every column", "no colon")

    def test_footnotes_follow_and_nan_is_a_slash(self):
        table = self.TABLE.copy()
        table.attrs["footnotes"] = ["<b> is text"]
        text, page = repr(tables.show(table)), tables.show(table)._repr_html_()
        assert "0.3333" in text and "/" in text and text.endswith("* <b> is text")
        assert "&lt;b&gt; is text" in page

    def test_chosen_columns_lose_a_single_prefix(self):
        assert list(tables.show(self.TABLE, "paper_").table) == ["api", "b"]
        assert list(tables.show(self.TABLE, "sort_", "paper_").table) == ["api", "sort_a", "paper_b"]

    def test_long_texts_are_whole_and_small_numbers_scientific(self):
        reason = "error against float64 " + "very " * 30 + "large"
        page = tables.show(pd.DataFrame({"difference": [4.2e-6, 0.0], "reason": [reason, ""]}))._repr_html_()
        assert reason in page and ">4.2e-06<" in page and ">0<" in page

    def test_an_empty_table_says_so(self):
        assert repr(tables.show(self.TABLE.iloc[:0])) == "* no rows"


class TestRealStudy:
    def test_everything_is_valid(self, tiny_study):
        table = tables.validity(tiny_study, "tested")
        assert set(table["sort_ratio"]) == set(table["single_ratio"]) == {100.0}
        assert cell(table, "Total", "sort_attempts") == sum(len(case.nodes) for case in tiny_study.cases if case.edges)
        assert tables.invalid(tiny_study).empty

    def test_every_slash_has_a_footnote(self, tiny_study):
        for make in (tables.validity, tables.bugs):
            table = make(tiny_study)
            slashed = table.loc[table["sort_perf" if "sort_crash" in table else "sort_ratio"] == "/", "api"]
            notes = " ".join(table.attrs["footnotes"])
            assert all(api in notes for api in slashed) or "perf: not measured" in notes
        missing = tables.average_difference(tiny_study)
        assert all(api in " ".join(missing.attrs["footnotes"]) for api in missing.loc[missing["sort"].isna(), "api"])

    def test_subjects_agree_with_the_nouns(self, tiny_study):
        assert tables.models(tiny_study)["records"].sum() == len(tiny_study.records)
        assert tables.records(tiny_study)["records"].sum() == len(tiny_study.records)
        total = tables.patterns(tiny_study).set_index("nodes").loc["Total"]
        assert total["patterns"] == len(tiny_study.patterns)
        assert total["with_join"] == sum(p.has_join for p in tiny_study.patterns) > 0
        assert tables.campaign(tiny_study)["calls"].sum() == len(tiny_study.all_outcomes)

    def test_all_tables_are_written_without_times(self, tiny_study):
        written = {path.stem: pd.read_csv(path) for path in (tiny_study.directory / "tables").glob("*.csv")}
        assert set(written) == {*tables.TABLES, "footnotes"}
        assert not [(name, c) for name, table in written.items() for c in table if "second" in c or c == "time"]
        assert set(written["average_difference"]["api"]) == set(PAPER_APIS)

    def test_a_second_run_gives_the_same_tables_to_the_last_digit(self, tiny_study, tmp_path):
        again = complete(Study.create(load_config("tiny"), tmp_path / "again"), progress=False)
        for name in [*tables.TABLES, "footnotes"]:
            first, second = (s.directory / "tables" / f"{name}.csv" for s in (tiny_study, again))
            assert first.read_bytes() == second.read_bytes(), name


class TestDetails:
    def test_calls_hold_gain_and_both_verdicts(self, tiny_study):
        table = details.calls(tiny_study, details.example_case(tiny_study))
        assert {"propagated", "local", "gain", "paper", "evidence", "reason"} <= set(table)
        grown = table[table["incoming"] > 0]
        assert len(grown) > 0
        assert (grown["gain"] == grown["propagated"] / grown["incoming"]).all()
        assert table.loc[~(table["incoming"] > 0), "gain"].isna().all()

    def test_the_most_telling_case_comes_first(self):
        rows = [
            call("plain", 0, "relu"),
            call("three", 0, "relu"), differing("three", 1, "conv2d", propagated=5e-4, incoming=0.0),
            differing("three", 2, "linear", propagated=0.01, incoming=5e-4),
        ]  # fmt: skip
        table = details.cases(study_of(rows))
        assert list(table["case"]) == ["three", "plain"]
        first = table.iloc[0]
        assert (first["identical"], first["below"], first["beyond"]) == (1, 1, 1)
        assert first["gain"] == pytest.approx(20)

    def test_inputs_tell_passed_on_from_drawn(self, tiny_study):
        case = next(case for case in tiny_study.cases if case.edges)
        table = details.inputs(case)
        assert (table["origin"] != "drawn").sum() == len(case.edges)
        assert table.loc[table["origin"] == "drawn", "dtype"].notna().all()

    def test_records_of_a_pattern_fit_together(self, tiny_study):
        pattern = tiny_study.pattern(details.example_pattern(tiny_study))
        records = details.pattern_records(tiny_study, pattern.id)
        assert tuple(record.api for record in records) == pattern.nodes
        for src, dst, _ in pattern.edges:
            assert records[src].outputs[0].signature in [f.signature for _, f in records[dst].tensors()]

    def test_unknown_names_are_one_clear_line(self, tiny_study):
        with pytest.raises(SortError, match="no record of API 'conv9d'.*recorded: .*conv2d"):
            details.records_of(tiny_study, "conv9d")
        with pytest.raises(SortError, match="no case 'nosuch'"):
            details.calls(tiny_study, "nosuch")
