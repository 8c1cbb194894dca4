"""Every cell of the research questions' tables leads back to the rows that it counts."""

import pandas as pd
import pytest

from sortlib import tables
from sortlib.apis import PAPER_APIS
from sortlib.errors import SortError


def test_a_count_is_the_number_of_its_rows(tiny_study):
    seen = 0
    for name, make in (("validity", tables.validity), ("bugs", tables.bugs)):
        table = make(tiny_study)
        for column in table.columns:
            if not column.startswith(("sort_", "single_")) or column.endswith(("_ratio", "_reasons", "_distinct",
                                                                               "_findings")):  # fmt: skip
                continue
            for api, value in zip(table["api"], table[column], strict=True):
                rows = tables.rows_of(tiny_study, name, api, column)
                assert len(rows) == (0 if value == "/" else value), (name, api, column)
                seen += len(rows)
    assert seen > 0


def test_a_row_leads_to_its_case_and_its_evidence(tiny_study):
    rows = tables.rows_of(tiny_study, "validity", "linear", "sort_attempts")
    assert set(rows["api"]) == {"linear"} and {"paper", "evidence", "reason", "model", "source"} <= set(rows)
    row = rows.iloc[0]
    assert tiny_study.case(row["case"]).nodes[row["node"]].api == "linear"


def test_a_mean_is_over_its_rows(tiny_study):
    table = tables.average_difference(tiny_study).set_index("api")
    for api in table.index[table["sort"].notna()]:
        rows = tables.rows_of(tiny_study, "average_difference", api, "sort")
        assert rows["propagated_max_abs"].astype(float).mean() == pytest.approx(table.loc[api, "sort"])
    table = tables.local_and_propagated(tiny_study).set_index("api")
    for api in table.index[table["arriving"] > 0]:
        assert len(tables.rows_of(tiny_study, "local_and_propagated", api, "gain")) == table.loc[api, "arriving"]
        rows = tables.rows_of(tiny_study, "local_and_propagated", api, "local")
        assert rows["local_max_abs"].astype(float).mean() == pytest.approx(table.loc[api, "local"])


def test_a_kind_of_edge_leads_to_its_calls(tiny_study):
    table = tables.gain_by_edge(tiny_study)
    assert len(table)
    for line in table.to_dict("records"):
        rows = tables.rows_of(tiny_study, "gain_by_edge", line["api"], f"{line['source']} {line['argument']}")
        assert len(rows) == line["calls"] and not rows.duplicated(["case", "node"]).any()
        assert (rows["gain"] > 1).mean() == pytest.approx(line["amplified"])
        for row in rows.to_dict("records"):
            case = tiny_study.case(row["case"])
            assert (line["source"], row["node"], line["argument"]) in {
                (case.nodes[src].api, dst, argument) for src, dst, argument in case.edges
            }


def test_findings_are_in_their_rows(tiny_study):
    rows = tables.rows_of(tiny_study, "bugs", "Total", "sort_evidence_findings")
    assert set(rows["api"]) <= set(PAPER_APIS)
    assert isinstance(rows, pd.DataFrame)


def test_mistakes_are_one_clear_line(tiny_study):
    for given, message in (
        (("models", "relu", "calls"), "rows of table 'models' are not known; valid: .*validity"),
        (("validity", "conv9d", "sort_valid"), "API 'conv9d' is in no model of this study"),
        (("validity", "relu", "paper_SORT"), "table validity has no column 'paper_SORT' that counts rows"),
        (("bugs", "relu", "sort_what"), "table bugs has no column 'sort_what'"),
        (("gain_by_edge", "relu", "input"), "table gain_by_edge has no column 'input'"),
    ):
        with pytest.raises(SortError, match=message):
            tables.rows_of(tiny_study, *given)
