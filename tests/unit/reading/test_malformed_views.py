"""Stored results of views that are not what a query wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import CorruptViewError
from millrace.ids import Epoch
from millrace.log.store import LocalStore
from millrace.reading import results
from millrace.reading.results import METADATA, ViewResult

ROWS = pa.table({"n": [1, 2, 3]})


def stored(tmp_path: Path, data: bytes) -> LocalStore:
    store = LocalStore(str(tmp_path))
    store.put("views/top/000000000003.arrow", data)
    return store


def file(noted: object, rows: pa.Table = ROWS, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({METADATA: json.dumps(noted).encode()})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


RIGHT = {"name": "top", "epoch": 3, "sql": "select 1"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ARROW1\0\0",
        b"x" * 1000,
        file([]),
        file({}),
        file(RIGHT | {"epoch": 4}),
        file(RIGHT | {"name": "../top"}),
        file(RIGHT | {"sql": None}),
        file(RIGHT, compression="zstd"),
        file(RIGHT, pa.table({"e": pa.array(["a"] * 9).dictionary_encode()}), "zstd"),
        file(RIGHT)[:-20],
    ],
)
def test_what_is_not_a_result_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptViewError, match=r"views/top/000000000003\.arrow"):
        results.read(stored(tmp_path, data), "top")


def test_a_result_with_a_dictionary_is_read(tmp_path: Path) -> None:
    rows = pa.table({"e": pa.array(["a", "b", "a"]).dictionary_encode()})
    store = LocalStore(str(tmp_path))
    results.write(store, ViewResult("top", Epoch(3), "select 1", rows))
    assert results.read(store, "top").rows.to_pylist() == rows.to_pylist()


def test_other_names_are_not_results(tmp_path: Path) -> None:
    store = stored(tmp_path, file(RIGHT))
    for name in ("²", "5", "000000000003 copy", "9" * 40):
        store.put(f"views/top/{name}.arrow", b"")
    store.put('views/x"; drop table y; --/000000000001.arrow', b"")
    assert results.epochs_of(store, "top") == [3]
    assert results.names(store) == ["top"]
