"""What `rescale` and `recovery` keep and draw of their runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from millrace_lab.bench import recovery, rescale
from millrace_lab.bench._console import steps
from millrace_lab.bench._openloop import Store
from millrace_lab.bench._under_load import Cluster

SERIES = {"live": {"points": [[-2.0, 0.2, 0.5, 1.1], [0.5, 0.2, 0.6, 1.2]], "moves": [[0.0, 0.4]]}}


@pytest.mark.parametrize(
    ("store", "name", "title"),
    [
        (Store(), "rescale", "20k keys, 2 → 4 → 2 executors"),
        (
            Store(20, 100),
            "rescale-slow-store",
            "20k keys, 2 → 4 → 2 executors, store 20 ms and 100 MB/s",
        ),
    ],
)
def test_timelines_are_kept_and_drawn(tmp_path: Path, store: Store, name: str, title: str) -> None:
    kept = tmp_path / "new" / "timelines.json"
    options = rescale.Options(keys=20_000, store=store, timelines=kept, images=tmp_path / "images")
    with steps(Console(file=io.StringIO()), "rescale") as shown:
        run = rescale.Rescale(options, tmp_path, shown)
    assert run._cluster() == Cluster(4, 2, store)
    run._series = SERIES
    run._write(run._title())
    assert json.loads(kept.read_text()) == SERIES
    drawn = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert drawn == [f"{name}.html", f"{name}.png"]
    assert title in (tmp_path / "images" / f"{name}.html").read_text()


def test_without_a_place_nothing_is_written(tmp_path: Path) -> None:
    with steps(Console(file=io.StringIO()), "recovery") as shown:
        run = recovery.Recovery(recovery.Options(), tmp_path, shown)
    run._series = SERIES
    run._write("a title")
    assert list(tmp_path.iterdir()) == []
    assert run._cluster() == Cluster(3, 2)
