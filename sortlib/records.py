"""Records on disk: one Parquet file of call records, in the versioned form of ``features.encode``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sortlib.apis import Argument
from sortlib.errors import SortError
from sortlib.features import CallRecord, decode, encode

SCHEMA_VERSION = "1"
_TEXT = ("graph", "api", "target", "module_path", "source")


def save_records(records: list[CallRecord], path):
    """Write records as Parquet; arguments and outputs are JSON text in the form of ``features.encode``."""
    columns = {name: [getattr(record, name) for record in records] for name in _TEXT}
    columns |= {name: [getattr(record, name) for record in records] for name in ("node", "sample", "inplace", "random")}
    columns["arguments"] = [_text([[a.name, encode(a.value), a.kind] for a in r.arguments]) for r in records]
    columns["outputs"] = [_text([encode(features) for features in r.outputs]) for r in records]
    columns["aliases"] = [_text([[list(later), list(earlier)] for later, earlier in r.aliases]) for r in records]
    table = pa.table(columns).replace_schema_metadata({"sort_record_version": SCHEMA_VERSION})
    pq.write_table(table, path, compression="zstd")


def load_records(path) -> list[CallRecord]:
    """Read what ``save_records`` wrote.

    Raises
    ------
    SortError
        The file is no record file, or was written in another version of the form.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise SortError(f"{path} is no readable record file: {str(error).splitlines()[0]}") from None
    version = (table.schema.metadata or {}).get(b"sort_record_version", b"none").decode()
    if version != SCHEMA_VERSION:
        raise SortError(f"{Path(path).name} holds records of version {version}; this sortlib reads {SCHEMA_VERSION}. "
                        "Trace the models again")  # fmt: skip
    try:
        return [_record(row) for row in table.to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise SortError(f"{path} is no readable record file: {str(error).splitlines()[0]}") from None


def _text(form) -> str:
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def _record(row) -> CallRecord:
    arguments = tuple(Argument(name, decode(form), kind) for name, form, kind in json.loads(row.pop("arguments")))
    outputs = tuple(decode(form) for form in json.loads(row.pop("outputs")))
    aliases = tuple((tuple(later), tuple(earlier)) for later, earlier in json.loads(row.pop("aliases")))
    return CallRecord(**row, arguments=arguments, outputs=outputs, aliases=aliases)
