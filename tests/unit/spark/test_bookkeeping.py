"""Spark's logs in a remote store, as the file manager in the JVM asks for them."""

from __future__ import annotations

import pytest
from tests.unit.recording import RecordingStore

from millrace import clock
from millrace.log import open_store
from millrace.spark.bookkeeping import StoreFiles


@pytest.fixture
def store() -> RecordingStore:
    store = open_store(f"memory://bookkeeping-{clock.fresh_id()}")
    store.put("spark/offsets/0", b"zero")
    store.put("spark/sources/0/0", b"source")
    store.put("manifests/1", b"no business of Spark's")
    return RecordingStore(store)


def test_what_there_is(store: RecordingStore) -> None:
    files = StoreFiles(store)
    assert files.names("spark") == "offsets/\nsources/"
    assert files.names("spark/offsets") == "0"
    assert files.names("spark/sources") == "0/"
    assert files.names("spark/commits") == ""
    assert files.exists("spark/offsets")
    assert files.exists("spark/offsets/0")
    assert not files.exists("spark/offset")
    assert files.read("spark/offsets/0") == b"zero"
    assert files.read("spark/offsets/1") is None


def test_a_batch_is_written_once(store: RecordingStore) -> None:
    files = StoreFiles(store)
    assert files.write("spark/offsets/1", b"one", False)
    assert not files.write("spark/offsets/1", b"other", False)
    assert files.write("spark/offsets/1", b"newer", True)
    assert files.read("spark/offsets/1") == b"newer"
    # Of another driver, seen only now.
    store.put("spark/offsets/2", b"theirs")
    assert not files.exists("spark/offsets/2")
    assert not files.write("spark/offsets/2", b"ours", False)


def test_old_batches_are_removed(store: RecordingStore) -> None:
    files = StoreFiles(store)
    files.remove("spark/offsets/0")
    files.remove("spark/offsets/0")
    files.remove("spark/sources")
    assert files.names("spark") == ""
    assert store.list("") == ["manifests/1"]


def test_a_batch_costs_a_create_per_file(store: RecordingStore) -> None:
    files = StoreFiles(store)
    files.exists("spark/offsets")
    store.asked.clear()
    for batch in range(1, 4):
        assert not files.exists(f"spark/offsets/{batch}")
        files.write(f"spark/offsets/{batch}", b"x", False)
        files.names("spark/offsets")
    assert store.asked == [("create", f"spark/offsets/{batch}") for batch in range(1, 4)]
