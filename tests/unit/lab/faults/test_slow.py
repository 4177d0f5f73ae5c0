"""The store that is as slow as a remote one."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.log.store import LocalStore, open_store
from millrace_lab.faults import HOOKS
from millrace_lab.faults.slow import LATENCY, RATE, SlowStore, environment, slowed


def test_a_slow_store_is_the_same_store_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("millrace.clock.sleep", waits.append)
    store = SlowStore(LocalStore(str(tmp_path)), latency_ms=20, mb_per_s=1)
    store.create("a/one", b"x" * 1000)
    store.put("a/two", b"y" * 500_000)
    assert store.read("a/one") == b"x" * 1000
    assert store.read_range("a/two", 10, 100) == b"y" * 100
    assert store.size("a/two") == 500_000
    assert store.list("a") == ["a/one", "a/two"]
    store.delete("a/one")
    assert store.size("a/one") is None
    assert store.local_path("a/two") is None
    assert store.url == str(tmp_path)
    expected = [0.021, 0.52, 0.021, 0.0201, 0.02, 0.02, 0.02, 0.02]
    assert waits == pytest.approx(expected)


def test_the_environment_slows_all_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalStore(str(tmp_path))
    assert slowed(local) is local
    for name, value in HOOKS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(RATE, "100")
    assert isinstance(open_store(str(tmp_path)), SlowStore)
    monkeypatch.delenv(RATE)
    monkeypatch.setenv(LATENCY, "5")
    assert isinstance(slowed(local), SlowStore)
    assert isinstance(open_store("memory://elsewhere"), SlowStore)


def test_the_variables_are_those_of_a_slow_store() -> None:
    assert environment(20, 100) == {**HOOKS, LATENCY: "20", RATE: "100"}
