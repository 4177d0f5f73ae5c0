"""`bench backends`: every engine does what is asked of it, and one that does not is noticed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from millrace.arrays import Int64Array
from millrace_lab.bench import Result, _backends, backends
from millrace_lab.bench._console import steps
from millrace_lab.bench.report import BACKEND_MEASURES, pages
from millrace_lab.servers import ServerMissingError
from millrace_lab.servers.redis import is_installed

CELLS = [
    pytest.param(
        name,
        kind,
        # A server, or a JVM.
        marks=[pytest.mark.stress] if name in ("redis", "spark_store") else [],
    )
    for name in _backends.BACKENDS
    for kind in _backends.kinds_of(name)
    # A session takes long; these two are kept in other ways than the others.
    if name != "spark_store" or kind in ("list", "nested")
]
KEYS = 300


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_an_engine_keeps_the_contract(name: str, kind: str, tmp_path: Path) -> None:
    if name == "redis" and not is_installed():
        raise ServerMissingError("Redis is not installed: run make servers")
    every = np.arange(KEYS)
    updates: Int64Array = np.zeros(KEYS, np.int64)
    store = _backends.make(name, kind, tmp_path)
    try:
        store.fill(every)
        store.checkpoint()
        for seed in range(3):
            chosen = np.random.default_rng(seed).choice(KEYS, 100, replace=False)
            store.update(chosen)
            assert store.checkpoint() > 0
            updates[chosen] += 1
        some = np.random.default_rng(9).choice(KEYS, 50, replace=False)
        assert store.read(some) == _backends.expected_read(kind, some, updates[some])
        right = _backends.expected_total(kind, every, updates)
        assert store.scan() == right.sum()
        store.restore()
        store.repartition(3)
        store.merge()
        for state in _backends.STATES:
            assert np.array_equal(store.totals(state, every), right), state
        backwards = every[::-1]
        assert np.array_equal(store.totals(_backends.LIVE, backwards), right[backwards])
    finally:
        store.close()


def run(options: backends.Options, workdir: Path) -> Result:
    with steps(Console(file=io.StringIO()), "backends") as shown:
        return backends.run(options, workdir, shown)


class AnswersHere:
    """A side in this process, whose engine forgets an update."""

    session = 1

    def __init__(self, kind: str, workdir: Path) -> None:
        from millrace_lab.bench._sides.backend import BackendSide

        workdir.mkdir(parents=True)
        self._side = BackendSide(kind.removeprefix("backend-"), workdir)

    def __enter__(self) -> AnswersHere:
        return self

    def __exit__(self, *_: object) -> None:
        self._side.close()

    def call(self, command: str, **arguments: Any) -> Any:
        return getattr(self._side, f"do_{command}")(**arguments)


SMALL = backends.Options(keys=(200,), changed=50, epochs=2, backends=("dict",), kinds=("value",))


def test_everything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "SideProcess", AnswersHere)
    result = run(SMALL, tmp_path)
    assert result.equal, result.differences
    wanted = {f"{measure}.dict.value.200" for measure in BACKEND_MEASURES}
    assert wanted <= result.figures.keys()
    page = pages({"backends": result.to_json()})["benchmarks.md"]
    for heading in BACKEND_MEASURES.values():
        assert f"| {heading} | value.200 |" in page


def test_an_engine_that_forgets_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace_lab.bench._backends import held

    monkeypatch.setattr(backends, "SideProcess", AnswersHere)
    monkeypatch.setattr(held.Store, "update", lambda self, keys: None)
    result = run(SMALL, tmp_path)
    assert result.exit_code == 1
    assert {d.split(": ")[1].split(" is not")[0] for d in result.differences} == {
        "what it reads",
        "its scan",
        *(f"the {state} state" for state in _backends.STATES),
    }
