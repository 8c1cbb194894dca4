"""Finding records among millions: by API and by dtype, shape and layout of the arguments that a join fixes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from sortlib.errors import SortError, choices
from sortlib.features import CallRecord, TensorFeatures
from sortlib.records import decoded, form_key, form_keys, layout_of, open_records


class RecordStore:
    """The records of one file, or of every file in a folder, as ``records.save_records`` writes them.

    The index is made when the store is opened, from the numbers that the files hold (``records.form_key``): an inverted
    list of records for each form of each argument of each API, about 8 bytes an argument. The records themselves are
    read when they are asked for.

    Parameters
    ----------
    path : a Parquet file, or a folder with ``*.parquet``.

    Examples
    --------
    >>> store = RecordStore("runs/paper/records")                                           # doctest: +SKIP
    >>> rows = store.find("conv2d", {"input": ("float32", (1, 64, 56, 56), "contiguous")})  # doctest: +SKIP
    >>> print(store.records(rows[:1])[0].describe())                                        # doctest: +SKIP
    """

    def __init__(self, path):
        path = Path(path)
        self.paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not self.paths:
            raise SortError(f"{path}: no record file (*.parquet) in this folder")
        self._files = [open_records(path) for path in self.paths]
        parts = [_columns(path, file) for path, file in zip(self.paths, self._files, strict=True)]
        sizes = [len(apis) for apis, _, _ in parts]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        apis = pa.concat_arrays([apis.cast(pa.string()) for apis, _, _ in parts]).dictionary_encode()
        self._names = apis.dictionary.to_pylist()
        self._by_api = _grouped(apis.indices.to_numpy(zero_copy_only=False).astype(np.uint64))
        keys = np.concatenate([keys for _, keys, _ in parts])
        counts = np.concatenate([counts for _, _, counts in parts])
        self._by_form = _grouped(keys, np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        self._read = lru_cache(8)(self._group)

    def __len__(self):
        return int(self._starts[-1])

    @property
    def apis(self) -> dict[str, int]:
        """API -> number of its records."""
        return {name: len(self.find(name)) for name in sorted(self._names)}

    def find(self, api: str, arguments: dict | None = None) -> np.ndarray:
        """Numbers of the records of an API whose given arguments have the given form, ascending.

        Parameters
        ----------
        api : canonical name.
        arguments : argument name or path -> its form: ``TensorFeatures``, or (dtype, shape, layout) where the layout is
            ``contiguous``, ``channels_last`` or the strides, ``contiguous`` if left out. Other arguments are free.

        Raises
        ------
        SortError
            No record of this API, or a form that is none of these.
        """
        if api not in self._names:
            raise SortError(f"no record of API {api!r}; recorded: {choices(self._names)}")
        if not arguments:
            return _lookup(self._by_api, self._names.index(api))
        lists = [_lookup(self._by_form, _key(api, path, form)) for path, form in arguments.items()]
        lists.sort(key=len)
        found = lists[0]
        for longer in lists[1:]:  # membership of few in many sorted ones
            place = np.searchsorted(longer, found)
            place[place == len(longer)] = 0
            found = found[longer[place] == found] if len(longer) else longer
        return found

    def records(self, rows) -> list[CallRecord]:
        """The records with these numbers."""
        result = []
        for row in rows:
            number = int(np.searchsorted(self._starts, row, "right")) - 1
            if not 0 <= row < len(self):
                raise SortError(f"no record {row}; the store holds {len(self)}")
            offset, group = int(row - self._starts[number]), 0
            metadata = self._files[number].metadata
            while offset >= metadata.row_group(group).num_rows:
                offset -= metadata.row_group(group).num_rows
                group += 1
            result += decoded(self.paths[number], self._read(number, group).slice(offset, 1))
        return result

    def _group(self, number, group):
        return self._files[number].read_row_group(group)


def _key(api, path, form) -> int:
    path = path if isinstance(path, tuple) else (path,)
    if isinstance(form, TensorFeatures):
        return form_key(api, path, form.dtype, form.shape, layout_of(form))
    try:
        if isinstance(form, str):
            raise TypeError
        dtype, shape, *rest = form
        features = TensorFeatures(dtype, tuple(shape), ())
        layout = rest[0] if rest else "contiguous"
        if not isinstance(layout, str):  # strides, which may be those of a layout with a name
            layout = layout_of(TensorFeatures(dtype, features.shape, tuple(layout)))
        return form_key(api, path, dtype, features.shape, layout)
    except (TypeError, ValueError):
        raise SortError(f"argument {'.'.join(map(str, path))}: {form!r} is no form; valid: TensorFeatures or (dtype, "
                        "shape, layout)") from None  # fmt: skip


def _columns(path, file):
    """(APIs, form keys of all records in a row, number of keys of each record) of one file."""
    if "forms" not in file.schema_arrow.names:  # version 1
        records = decoded(path, file.read())
        keys = list(map(form_keys, records))
        flat = np.array([key for some in keys for key in some], np.uint64)
        return pa.array([r.api for r in records], pa.string()), flat, np.array(list(map(len, keys)), np.int64)
    table = file.read(columns=["api", "forms"]).combine_chunks()
    forms = table["forms"].combine_chunks()
    forms = forms.chunk(0) if isinstance(forms, pa.ChunkedArray) and forms.num_chunks else forms
    apis = table["api"].combine_chunks()
    apis = apis.chunk(0) if isinstance(apis, pa.ChunkedArray) and apis.num_chunks else apis
    if not len(table):
        return pa.array([], pa.string()), np.array([], np.uint64), np.array([], np.int64)
    return apis, forms.flatten().to_numpy(zero_copy_only=False), np.diff(forms.offsets.to_numpy())


def _grouped(keys, rows=None):
    """(distinct keys, where each begins, rows grouped by key and ascending within)."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    rows = order.astype(np.int32) if rows is None else rows[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.array([], np.int64)
    return keys[first], np.append(first, len(keys)), rows


def _lookup(index, key):
    keys, begins, rows = index
    place = int(np.searchsorted(keys, np.uint64(key)))
    if place == len(keys) or keys[place] != np.uint64(key):
        return rows[:0]
    return rows[begins[place] : begins[place + 1]]
