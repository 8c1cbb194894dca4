"""Store of records: ``python tests/benchmarks/records.py [--zoo paper]``.

Prints one JSON line a figure: name, value, bar (null where none is set), ok, peer, note. A million records, copies of
those of a small network on 60 sizes of image, are written once and looked up by API, dtype, shape and layout of the
arguments that hold activations. With ``--zoo`` every model of that zoo is traced on its inputs (minutes), four in the
paper's, and the size of the files is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import nn

from sortlib.record_store import RecordStore
from sortlib.records import load_records, save_records
from sortlib.tracing import Tracer

MILLION = 1_000_000


def figure(name, value, bar=None, ok=True, note=""):
    value = round(value, 4) if isinstance(value, float) else value
    print(
        json.dumps({"name": name, "value": value, "bar": bar, "ok": bool(ok), "peer": None, "note": note}), flush=True
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.line = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.cat([y, y * 2 + y], 1)[:, :8].permute(0, 2, 3, 1)
        return self.line(y).softmax(-1) @ self.line.weight


def million(path):
    """Write the store; returns the records that it repeats."""
    model, records = Block().eval(), []
    for size in range(4, 64):
        records += Tracer(f"block{size}").run(model, torch.randn(1, 3, size, size))[1]
    save_records(records, path)
    table = pq.read_table(path)
    copies = MILLION // len(records) + 1
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for start in range(0, copies, 8):
            for _ in range(min(8, copies - start)):
                writer.write_table(table)
    return records, copies * len(records)


def lookups(records, path, count):
    begin = time.perf_counter()
    store = RecordStore(path)
    opened = time.perf_counter() - begin
    assert len(store) == count
    taken, fetched = [], []
    for record in records:
        given = {at: f for at, f in record.tensors() if f.role in ("call", "input")}
        begin = time.perf_counter()
        rows = store.find(record.api, given)
        taken.append(1000 * (time.perf_counter() - begin))
        assert len(rows) >= count // len(records)  # every copy
    for record in records[::50]:
        rows = store.find(record.api, {at: f for at, f in record.tensors()})
        begin = time.perf_counter()
        (found,) = store.records(rows[:1])
        fetched.append(1000 * (time.perf_counter() - begin))
        assert (
            found.api == record.api and list(found.tensors())[0][1].signature == list(record.tensors())[0][1].signature
        )
    note = f"largest of {len(taken)} look-ups in {count} records; median {statistics.median(taken):.4f} ms"
    figure("ms to look up the records of an API by the form of its arguments", max(taken), 5, max(taken) < 5, note=note)
    figure(
        "ms to read the first record found", statistics.median(fetched), note="median; a row group is decoded and kept"
    )
    figure("seconds to open the store", opened, note=f"{count} records, {path.stat().st_size / 1e6:.1f} MB")


def size_of(zoo_name, folder):
    from sortlib.zoo import load_zoo, prepare

    zoo, total, number = load_zoo(zoo_name), 0, 0
    for entry in zoo.models:
        model, samples = prepare(entry, zoo)
        records = [
            r for k, (args, kwargs) in enumerate(samples) for r in Tracer(entry.name, k).run(model, *args, **kwargs)[1]
        ]
        path = folder / f"{entry.name}.parquet"
        save_records(records, path)
        total, number = total + path.stat().st_size, number + len(records)
        print(
            f"# {entry.name}: {len(records)} records, {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr, flush=True
        )
    assert len(load_records(path)) == len(records)
    megabytes = total / 1e6
    note = f"{number} records of {len(zoo.models)} models on {len(samples)} inputs each"
    figure(f"MB of records, zoo {zoo_name}", megabytes, 200, megabytes < 200, note=note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", help="measure the size of this zoo's records as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "million.parquet")
        lookups(*((made := million(path))[0], path, made[1]))
        if options.zoo:
            size_of(options.zoo, Path(folder))


if __name__ == "__main__":
    main()
