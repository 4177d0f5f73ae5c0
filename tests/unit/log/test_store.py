"""The contract of a store, on every kind of store: directories, fsspec, S3 and HDFS."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from millrace.errors import (
    AlreadyExistsError,
    MissingFileError,
    StoreError,
    UnsafeStoreError,
    UnwritableLocationError,
)
from millrace.log.store import (
    FsspecStore,
    LocalStore,
    ObjectStore,
    Store,
    WebHdfsStore,
    check_create,
    local,
    open_store,
    replace,
)

REMOTE = {"s3": "moto_bucket", "minio": "minio_bucket", "hdfs": "hdfs_folder"}
SHARED = [
    *("local", "file-url"),
    pytest.param("minio", marks=pytest.mark.stress),
    pytest.param("hdfs", marks=pytest.mark.stress),
]
"""Stores that several may write to at once. fsspec's memory is not for threads, and moto's server
looks before it writes, so that two of its threads may both create."""


@pytest.fixture(params=["memory", *SHARED, pytest.param("s3", marks=pytest.mark.xdist_group("s3"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in REMOTE:
        yield open_store(f"{request.getfixturevalue(REMOTE[request.param])}/location")
    elif request.param == "memory":
        url = f"memory://{request.node.originalname}"
        yield open_store(url)
        fs = fsspec.filesystem("memory")
        if fs.exists(url):
            fs.rm(url, recursive=True)
    else:
        prefix = "file://" if request.param == "file-url" else ""
        yield open_store(f"{prefix}{tmp_path}/location")


def test_what_is_written_is_read(store: Store) -> None:
    store.create("manifests/1.json", b"one")
    store.put("segments/op/1.arrow", memoryview(b"two"))
    store.put("segments/op/2.arrow", b"")
    store.put("segments/op/3.arrow", memoryview(pa.py_buffer(b"three")).cast("b"))
    assert store.read("segments/op/3.arrow") == b"three"
    assert store.read("manifests/1.json") == b"one"
    assert store.read("segments/op/1.arrow") == b"two"
    assert store.read("segments/op/2.arrow") == b""
    assert store.size("manifests/1.json") == 3
    assert store.size("segments/op/2.arrow") == 0


def test_create_fails_if_the_file_exists_and_leaves_it_alone(store: Store) -> None:
    store.create("a/b", b"first")
    with pytest.raises(AlreadyExistsError, match="a/b exists already"):
        store.create("a/b", b"second")
    assert store.read("a/b") == b"first"
    assert store.list("a") == ["a/b"]


@pytest.mark.parametrize("store", SHARED, indirect=True)
def test_of_many_creators_one_wins(store: Store) -> None:
    wins: list[int] = []
    losses: list[int] = []
    ready = threading.Barrier(8)

    def contend(number: int) -> None:
        ready.wait()
        try:
            store.create("manifests/7.json", str(number).encode())
            wins.append(number)
        except AlreadyExistsError:
            losses.append(number)

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert len(losses) == 7
    assert store.read("manifests/7.json") == str(wins[0]).encode()
    assert store.list("manifests") == ["manifests/7.json"]


def test_list_is_sorted_recursive_and_relative_to_the_root(store: Store) -> None:
    for path in ("segments/b/2", "segments/a/1", "segments/a/deep/0", "millrace.json"):
        store.put(path, b"x")
    assert store.list("segments") == ["segments/a/1", "segments/a/deep/0", "segments/b/2"]
    assert store.list("segments/a") == ["segments/a/1", "segments/a/deep/0"]
    assert store.list("") == ["millrace.json", *store.list("segments")]


def test_what_is_not_there(store: Store) -> None:
    assert store.size("none") is None
    assert store.list("none") == []
    assert store.list("") == []
    store.delete("none")
    with pytest.raises(MissingFileError, match="none is missing"):
        store.read("none")


def test_a_large_file(store: Store) -> None:
    # More than object stores take in one part.
    content = os.urandom(1 << 20) * 7
    store.put("segments/large", memoryview(content))
    assert store.size("segments/large") == len(content)
    assert store.read_range("segments/large", 6 << 20, 100) == content[:100]
    assert store.read("segments/large") == content


def test_delete(store: Store) -> None:
    store.put("a/1", b"x")
    store.put("a/2", b"x")
    store.delete("a/1")
    assert store.list("a") == ["a/2"]
    assert store.size("a/1") is None
    store.create("a/1", b"again")
    assert store.read("a/1") == b"again"


def test_only_a_local_store_has_paths_to_map(tmp_path: Path) -> None:
    assert open_store(str(tmp_path)).local_path("x") == str(tmp_path / "x")
    assert open_store("memory://somewhere").local_path("x") is None


def test_a_url_decides_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path)), LocalStore)
    assert isinstance(open_store("relative/path"), LocalStore)
    assert open_store("relative/path").url == os.path.abspath("relative/path")
    assert open_store(f"file://{tmp_path}").url == str(tmp_path)
    assert isinstance(open_store("memory://x"), FsspecStore)
    for url in ("s3://b/x", "s3a://b/x", "gs://b/x", "abfss://b@account.dfs.core.windows.net/x"):
        assert isinstance(open_store(url), ObjectStore)
    assert isinstance(open_store("webhdfs://namenode:9870/x"), WebHdfsStore)


@pytest.mark.parametrize("url", ["nosuch://bucket/path", "no-such-scheme://x"])
def test_an_unknown_scheme_says_what_to_install(url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*fsspec package.*install"):
        open_store(url)


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = open_store(str(tmp_path / "file" / "location"))
    for write in (store.create, store.put):
        with pytest.raises(UnwritableLocationError, match=r"cannot .*Not a directory.*permissions"):
            write("millrace.json", b"x")
    with pytest.raises(MissingFileError):
        store.read("millrace.json")
    assert store.size("millrace.json") is None


def test_a_file_in_the_place_of_the_location_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = open_store(str(tmp_path / "file"))
    with pytest.raises(UnwritableLocationError, match="cannot create"):
        store.create("millrace.json", b"x")
    with pytest.raises(UnwritableLocationError, match="cannot list"):
        store.list("")


def test_a_file_system_that_takes_no_files(tmp_path: Path) -> None:
    with pytest.raises(UnwritableLocationError, match="cannot create /proc/location"):
        open_store("/proc/location").create("millrace.json", b"x")


def test_a_location_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "location"))
    store.put("a/1", b"x")
    (tmp_path / "location" / "a" / "1").unlink()
    (tmp_path / "location" / "a").rmdir()
    with pytest.raises(UnwritableLocationError, match="No such file or directory"):
        store.put("a/2", b"x")


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, StoreError, r"no space left to .*free some space and start the query again"),
        (errno.EROFS, UnwritableLocationError, r"Read-only file system.*Check the permissions"),
        (errno.EACCES, UnwritableLocationError, r"Permission denied.*Check the permissions"),
        (errno.EIO, StoreError, r"Input/output error"),
    ],
)
@pytest.mark.parametrize("verb", ["create", "put"])
def test_what_the_operating_system_refuses_is_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    number: int,
    error: type[Exception],
    message: str,
) -> None:
    store = open_store(str(tmp_path / "location"))
    store.put("a/1", b"x")

    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing)
        with pytest.raises(error, match=message) as caught:
            getattr(store, verb)("a/2", b"data")
    assert isinstance(caught.value.__cause__, OSError)
    # Half a create leaves nothing behind, so it can be tried again.
    if verb == "create":
        assert store.list("a") == ["a/1"]
        store.create("a/2", b"data")


def test_a_folder_that_cannot_be_read_does_not_look_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    store.put("manifests/1.json", b"x")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UnwritableLocationError, match="cannot list"):
        store.list("manifests")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, view: real(fd, view[:3]))
    store = open_store(str(tmp_path))
    store.put("a", b"0123456789")
    store.create("b", b"0123456789")
    assert store.read("a") == store.read("b") == b"0123456789"


def test_some_bytes_of_a_file(store: Store) -> None:
    store.put("a/b", b"0123456789")
    assert store.read_range("a/b", 0, 3) == b"012"
    assert store.read_range("a/b", 4, 2) == b"45"
    assert store.read_range("a/b", 8, 5) == b"89"
    assert store.read_range("a/b", 10, 5) == b""
    assert store.read_range("a/b", 30, 5) == b""
    with pytest.raises(MissingFileError, match="a/none is missing"):
        store.read_range("a/none", 0, 1)


def test_a_file_is_replaced(store: Store) -> None:
    store.put("a/b", b"old")
    mapped = store.local_path("a/b")
    with open(mapped, "rb") if mapped else contextlib.nullcontext() as opened:
        replace(store, "a/b", b"newer")
        assert opened is None or opened.read() == b"old"
    assert store.read("a/b") == b"newer"
    assert store.list("") == ["a/b"]


@pytest.mark.parametrize("url", ["", None, 5])
def test_what_is_no_location(url: object) -> None:
    with pytest.raises(UnwritableLocationError, match=f"{url!r} is not a location. Give a dir"):
        open_store(url)  # type: ignore[arg-type]


class Remembering(MemoryFileSystem):
    """Says how it was made."""

    protocol = "remembering"
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, *given: Any, **options: Any) -> None:
        self.made.append(options)
        super().__init__(*given, **options)


class Looking(MemoryFileSystem):
    """Looks whether a file is there, and then writes it, as fsspec does by default."""

    protocol = "looking"
    pipe_file = AbstractFileSystem.pipe_file


class Overwriting(MemoryFileSystem):
    """Knows the mode, and does not care."""

    protocol = "overwriting"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        super().pipe_file(path, value)


class Strict(MemoryFileSystem):
    """Has no list of a folder that does not exist, which most file systems take for empty."""

    protocol = "strict"

    def find(self, path: str, *given: Any, **options: Any) -> Any:
        if not self.exists(path):
            raise FileNotFoundError(path)
        return super().find(path, *given, **options)


@pytest.fixture(autouse=True, scope="module")
def file_systems() -> None:
    for kind in (Remembering, Looking, Overwriting, Strict):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)


def test_no_lists_are_remembered() -> None:
    open_store("remembering://some/where")
    assert Remembering.made[-1]["use_listings_cache"] is False


def test_a_folder_that_does_not_exist_is_empty() -> None:
    store = open_store("strict://c")
    assert store.list("leases") == []
    store.create("leases/a", b"")
    assert store.list("leases") == ["leases/a"]


def test_a_store_that_looks_before_it_writes_is_refused() -> None:
    with pytest.raises(UnsafeStoreError, match=r"looking://a \(Looking\) checks whether.*Use a"):
        check_create(open_store("looking://a"))


def test_a_store_that_overwrites_is_refused() -> None:
    store = open_store("overwriting://b")
    with pytest.raises(UnsafeStoreError, match=r"\(Overwriting\) has overwritten"):
        check_create(store)
    assert store.list("") == []


def test_a_store_with_an_exclusive_create_is_fine(store: Store) -> None:
    check_create(store)
    assert store.list("") == []


def test_new_folders_are_synced_in_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    store = open_store(str(tmp_path / "a" / "b"))
    store.put("c/d/file", b"1")
    own = [tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert synced == [*map(str, own), str(tmp_path / "a" / "b" / "c" / "d")]
    synced.clear()
    store.put("c/d/other", b"1")
    assert synced == [str(tmp_path / "a" / "b" / "c" / "d")]
