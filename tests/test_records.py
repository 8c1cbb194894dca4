"""The store of records: an equal list comes back, and what cannot be read is refused in one line."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from sortlib.apis import Argument
from sortlib.errors import SortError
from sortlib.features import CallRecord, measure
from sortlib.record_store import RecordStore
from sortlib.records import SCHEMA_VERSION, load_records, save_records
from sortlib.tracing import Tracer, trace


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = torch.relu_(self.norm(self.conv(x)))
        y = torch.cat([y, y[..., 1:, :].new_zeros(1, 4, 4, 4) / 0, y * y], dim=0)
        return y.to(memory_format=torch.channels_last).masked_fill(y > 1, -float("inf"))


@pytest.fixture
def records():
    torch.manual_seed(0)
    return trace(Model().eval(), torch.randn(1, 3, 6, 6))[1]


def test_records_come_back_equal(records, tmp_path):
    save_records(records, tmp_path / "records.parquet")
    assert load_records(tmp_path / "records.parquet") == records
    assert len(records) == 11 and any(record.aliases for record in records) and any(r.inplace for r in records)


def test_no_records_are_a_store_too(tmp_path):
    save_records([], tmp_path / "none.parquet")
    assert load_records(tmp_path / "none.parquet") == []


def test_a_store_of_version_1_is_read(records, tmp_path):
    """Version 1 had neither gradients nor numbers of forms."""
    path = tmp_path / "old.parquet"
    save_records(records, path)
    old = pq.read_table(path).drop_columns(["input_gradients", "output_gradients", "forms"])
    pq.write_table(old.replace_schema_metadata({"sort_record_version": "1"}), path)
    assert load_records(path) == records
    assert list(RecordStore(path).find("conv2d")) == [0]


def test_gradients_come_back(tmp_path):
    _, records = Tracer(backward=True).run(Model().train(), torch.randn(2, 3, 6, 6))
    save_records(records, tmp_path / "records.parquet")
    assert load_records(tmp_path / "records.parquet") == records and any(r.output_gradients for r in records)


# ---- the store as an index ----


def test_records_are_found_by_the_form_of_their_arguments(tmp_path):
    """Compared with a search through all records, over two files."""
    everything = []
    for size in (6, 7):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
        _, records = Tracer(f"model{size}").run(model, torch.randn(1, 3, size, 6))
        save_records(records, tmp_path / f"{size}.parquet")
        everything += records
    store = RecordStore(tmp_path)
    assert len(store) == len(everything) == 10
    assert store.apis == dict(Counter(record.api for record in everything))
    for record in everything:
        arguments = dict(record.tensors())
        for given in (arguments, dict(list(arguments.items())[:1])):
            rows = store.find(record.api, given)
            expected = [
                row for row, other in enumerate(everything) if other.api == record.api
                and all(dict(other.tensors()).get(at) and dict(other.tensors())[at].signature == f.signature
                        for at, f in given.items())
            ]  # fmt: skip
            assert list(rows) == expected
            assert store.records(rows) == [everything[row] for row in rows]


def test_layouts_are_given_by_name_or_by_strides(records, tmp_path):
    save_records(records, tmp_path / "records.parquet")
    store = RecordStore(tmp_path / "records.parquet")
    shape = (1, 3, 6, 6)
    found = [list(store.find("conv2d", {"input": form})) for form in (
        ("float32", shape), ("float32", shape, "contiguous"), ("float32", shape, (108, 36, 6, 1)),
        ("float32", shape, "channels_last"), ("float64", shape), ("float32", (1, 3, 6, 7)))]  # fmt: skip
    assert found == [[0], [0], [0], [], [], []]


def test_mistakes_in_a_search_are_one_line(records, tmp_path):
    save_records(records, tmp_path / "records.parquet")
    store = RecordStore(tmp_path)
    with pytest.raises(SortError, match="^no record of API 'linear'; recorded: batch_norm, cat, "):
        store.find("linear")
    with pytest.raises(SortError, match="^argument input: 'float32' is no form; valid: TensorFeatures or "):
        store.find("conv2d", {"input": "float32"})
    with pytest.raises(SortError, match="^no record 11; the store holds 11$"):
        store.records([11])
    (tmp_path / "none").mkdir()
    with pytest.raises(SortError, match="no record file"):
        RecordStore(tmp_path / "none")
    save_records([], tmp_path / "none" / "empty.parquet")
    assert len(RecordStore(tmp_path / "none")) == 0


# ---- content ----


def test_every_kind_of_argument_survives(tmp_path):
    features = measure(torch.tensor([0.0, float("nan")]), "parameter")
    values = [
        None,
        1.5,
        float("inf"),
        "é",
        (1, [features]),
        slice(1, None),
        Ellipsis,
        torch.int8,
        torch.device("cpu"),
        {"k": 2j},
    ]
    arguments = tuple(Argument(f"a{i}", value, "keyword") for i, value in enumerate(values))
    record = CallRecord(
        "g", 1, 2, "api", "torch.api", "m.0", "f.py:3", arguments, (features,), ((("a", 1), ("b",)),), True, True
    )
    save_records([record], tmp_path / "one.parquet")
    assert load_records(tmp_path / "one.parquet") == [record]


def test_other_versions_are_refused_in_one_line(records, tmp_path):
    path = tmp_path / "records.parquet"
    save_records(records, path)
    table = pq.read_table(path)
    for metadata, version in (({"sort_record_version": "0"}, "0"), ({}, "none")):
        pq.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(
            SortError,
            match=f"^records.parquet holds records of version {version}; this sortlib reads "
            f"1 and {SCHEMA_VERSION}. Trace the models again$",
        ):
            load_records(path)


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "empty"])
def test_a_broken_file_is_one_line(records, tmp_path, damage):
    path = tmp_path / "records.parquet"
    save_records(records, path)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"text": b"not parquet at all", "cut": path.read_bytes()[:-20], "empty": b""}[damage])
    with pytest.raises(SortError, match=r"records.parquet is no readable record file: [^\n]+$"):
        load_records(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("arguments", "not json"),
        ("arguments", json.dumps([["x", {"$call": "os.system"}, "keyword"]])),
        ("arguments", json.dumps([["x"]])),
        ("outputs", json.dumps([{"$tensor": {"unknown": 1}}])),
        ("aliases", "[1]"),
        ("node", None),
    ],
)
def test_broken_content_is_one_line(records, tmp_path, column, value):
    path = tmp_path / "records.parquet"
    save_records(records, path)
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    if value is None:
        table = table.remove_column(place)
    else:
        table = table.set_column(place, column, pa.array([value] * table.num_rows))
    pq.write_table(table, path)
    with pytest.raises(SortError, match=r"records.parquet is no readable record file: [^\n]+$"):
        load_records(path)
