"""The module that `MILLRACE_HOOKS` names sees points and stores; without it nothing happens."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace import hooks
from millrace.log.store import FsspecStore, LocalStore, open_store


def test_without_the_variable_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(hooks.VARIABLE, raising=False)
    hooks.reach(hooks.AFTER_SINK, 1)
    assert isinstance(open_store(str(tmp_path)), LocalStore)


def test_the_named_module_sees_points_and_every_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    replaced = LocalStore(str(tmp_path / "other"))

    def opened(store: object) -> LocalStore:
        seen.append(type(store))
        return replaced

    module = SimpleNamespace(reached=lambda *at: seen.append(at), opened=opened)
    monkeypatch.setitem(sys.modules, "watching", module)
    monkeypatch.setenv(hooks.VARIABLE, "watching")
    hooks.reach(hooks.AFTER_SINK, 7)
    assert open_store(str(tmp_path)) is replaced
    assert open_store("memory://here") is replaced
    assert seen == [("after-sink", 7), LocalStore, FsspecStore]


def test_a_missing_module_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.VARIABLE, "nowhere.to.be.found")
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        hooks.reach(hooks.AFTER_SINK, 1)
