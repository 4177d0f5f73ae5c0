"""A store that is out of reach for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.errors import StoreError
from millrace.log.store import LocalStore, Store, open_store
from millrace_lab.faults import outage

OPERATIONS: list[Callable[[Store], object]] = [
    lambda store: store.create("b", b"1"),
    lambda store: store.put("b", b"1"),
    lambda store: store.read("a"),
    lambda store: store.read_range("a", 0, 1),
    lambda store: store.size("a"),
    lambda store: store.list(""),
    lambda store: store.delete("a"),
    lambda store: store.local_path("a"),
]


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    flag = tmp_path / "outage"
    for name, value in outage.environment(flag).items():
        monkeypatch.setenv(name, value)
    return flag


@pytest.mark.parametrize("kind", outage.KINDS)
def test_every_operation_raises_until_it_is_over(tmp_path: Path, flag: Path, kind: str) -> None:
    store = open_store(str(tmp_path / "location"))
    store.create("a", b"1")
    outage.begin(flag, kind)
    for operation in OPERATIONS:
        with pytest.raises(outage.KINDS[kind], match="out of reach"):
            operation(store)
    outage.end(flag)
    outage.end(flag)
    assert store.list("") == ["a"]
    assert store.read("a") == b"1"


def test_clients_raise_errors_of_their_own() -> None:
    assert not issubclass(outage.ClientFault, OSError | StoreError)


def test_other_environments_are_left_alone(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path)), LocalStore)
