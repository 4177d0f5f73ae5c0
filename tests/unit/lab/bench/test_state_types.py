"""`bench state-types`, small: it measures everything, and notices what is wrong."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from millrace.operators.process.tables import WHOLE
from millrace_lab.bench import Result, state_types
from millrace_lab.bench._console import steps
from millrace_lab.bench._state_kinds import KINDS, Kind
from millrace_lab.bench.report import MEASURES, state_types_page

SMALL = state_types.Options(keys=(60, 200), changed=100, epochs=2, big=2 * WHOLE, big_epochs=3)


def run(options: state_types.Options, workdir: Path) -> Result:
    with steps(Console(file=io.StringIO()), "state-types") as shown:
        return state_types.run(options, workdir, shown)


@pytest.mark.stress
def test_everything_is_measured_for_every_kind(tmp_path: Path) -> None:
    result = run(SMALL, tmp_path)
    assert result.equal, result.differences
    wanted = {
        f"{m}.{kind.name}.{size}" for m in MEASURES for kind in KINDS for size in ("60", "200")
    }
    assert wanted <= result.figures.keys()
    assert all(result.figures[name] > 0 for name in wanted)
    names = {"value", "nested", "pickled", "reducing", "aggregating", "list", "map", "set"}
    assert {kind.name for kind in KINDS} == names
    assert result.bars == []
    assert "| nested |" in state_types_page(result.to_json(), set())


def test_a_large_collection_is_not_rewritten(tmp_path: Path) -> None:
    figures = run(replace(SMALL, keys=(50,)), tmp_path).figures
    for change in ("list_append", "map_set", "set_add"):
        assert figures[f"big.bytes.{change}.1024_over_100"] < 1.5


def test_a_state_that_is_not_what_the_updates_make_of_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(kind: Kind) -> Kind:
        return replace(kind, update=lambda s, k: None) if kind.name == "pickled" else kind

    monkeypatch.setattr(state_types, "KINDS", tuple(map(forgets, KINDS)))
    result = run(replace(SMALL, keys=(50,)), tmp_path)
    assert not result.equal
    assert result.exit_code == 1
    assert len(result.differences) == 1
    assert "pickled" in result.differences[0]
