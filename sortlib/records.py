"""Records on disk: one Parquet file of call records, in the versioned form of ``features.encode``.

Version 2 holds gradients (training mode) and, for each tensor argument, a number to find it by (``form_key``); files of
version 1, which lack both, are read as well.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sortlib.apis import Argument
from sortlib.errors import SortError
from sortlib.features import CallRecord, decode, encode
from sortlib.runner.files import replacing

SCHEMA_VERSION = "2"
READABLE = ("1", "2")
ROW_GROUP = 4096  # what is decoded to read a single record
_TEXT = ("graph", "api", "target", "module_path", "source")
_JSON = ("arguments", "outputs", "aliases", "input_gradients", "output_gradients")


def save_records(records: list[CallRecord], path):
    """Write records as Parquet; arguments and outputs are JSON text in the form of ``features.encode``.

    Raises
    ------
    SortError
        The file cannot be written.
    """
    columns = {name: [getattr(record, name) for record in records] for name in _TEXT}
    columns |= {name: [getattr(record, name) for record in records] for name in ("node", "sample", "inplace", "random")}
    columns["arguments"] = [_text([[a.name, encode(a.value), a.kind] for a in r.arguments]) for r in records]
    columns["outputs"] = [_text([encode(features) for features in r.outputs]) for r in records]
    columns["aliases"] = [_text([[list(later), list(earlier)] for later, earlier in r.aliases]) for r in records]
    columns["input_gradients"] = [
        _text([[list(path), encode(features)] for path, features in r.input_gradients]) for r in records
    ]
    columns["output_gradients"] = [_text([encode(features) for features in r.output_gradients]) for r in records]
    columns["forms"] = pa.array(list(map(form_keys, records)), pa.list_(pa.uint64()))
    table = pa.table(columns).replace_schema_metadata({"sort_record_version": SCHEMA_VERSION})
    with replacing(path) as new:
        pq.write_table(table, new, compression="zstd", row_group_size=ROW_GROUP)


def load_records(path) -> list[CallRecord]:
    """Read what ``save_records`` wrote.

    Raises
    ------
    SortError
        The file is no record file, or was written in a version of the form that is not read.
    """
    with open_records(path) as file:
        return decoded(path, file.read())


def open_records(path) -> pq.ParquetFile:
    """The Parquet file, its version checked; errors as ``load_records``."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from None
    version = (file.schema_arrow.metadata or {}).get(b"sort_record_version", b"none").decode()
    if version not in READABLE:
        file.close()
        raise SortError(f"{Path(path).name} holds records of version {version}; this sortlib reads "
                        f"{' and '.join(READABLE)}. Trace the models again")  # fmt: skip
    return file


def decoded(path, table) -> list[CallRecord]:
    """The records in a table that was read from ``path``."""
    try:
        return [_record(row) for row in table.to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from None


def form_key(api, path, dtype, shape, layout) -> int:
    """64 bits of a BLAKE2b hash that stand for the form of one tensor argument of an API.

    Parameters
    ----------
    path : of the argument, for example ``("input",)`` or ``("tensors", 3)``.
    layout : ``contiguous``, ``channels_last`` or the strides.
    """
    place = layout if isinstance(layout, str) else ",".join(map(str, layout))
    text = "\0".join((api, ".".join(map(str, path)), dtype, ",".join(map(str, shape)), place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def form_keys(record) -> list[int]:
    """``form_key`` of every tensor argument."""
    return [form_key(record.api, path, f.dtype, f.shape, layout_of(f)) for path, f in record.tensors()]


def layout_of(features):
    """Name of the layout, or the strides where it has no name."""
    return features.strides if features.layout == "strided" else features.layout


def _unreadable(path, error) -> SortError:
    return SortError(f"{path} is no readable record file: {str(error).splitlines()[0]}")


def _text(form) -> str:
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def _record(row) -> CallRecord:
    row.pop("forms", None)
    arguments, outputs, aliases, inputs, gradients = (json.loads(row.pop(name, "[]")) for name in _JSON)
    return CallRecord(
        **row,
        arguments=tuple(Argument(name, decode(form), kind) for name, form, kind in arguments),
        outputs=tuple(map(decode, outputs)),
        aliases=tuple((tuple(later), tuple(earlier)) for later, earlier in aliases),
        input_gradients=tuple((tuple(path), decode(form)) for path, form in inputs),
        output_gradients=tuple(map(decode, gradients)),
    )
