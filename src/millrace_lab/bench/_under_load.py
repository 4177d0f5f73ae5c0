"""What `rescale` and `recovery` share: something happens to a side under load, and is drawn."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from millrace_lab.bench import _timeline_plot
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._openloop import Side, Store
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name

MILLRACE, SPARK = "millrace_cluster", "spark_cluster"


@dataclass(frozen=True)
class LoadOptions:
    """Sizes of a run."""

    keys: int = 5_000_000
    rate: int | None = None
    """Rows per second; None for half of the capacity, which is measured."""
    spark: bool = True
    warm: float = 5.0
    steady: float = 10.0
    probe: float = 10.0
    offered: int = 600_000
    spark_offered: int = 40_000
    timelines: Path | None = None
    images: Path | None = None


@dataclass(frozen=True)
class Cluster:
    """What a side runs on."""

    executors: int
    parallelism: int
    store: Store = field(default_factory=Store)


LoadOptionsT = TypeVar("LoadOptionsT", bound=LoadOptions)


class UnderLoad(Benchmark[LoadOptionsT]):
    """A run whose rows come at a fixed rate, whether the sides keep up or not."""

    def __init__(self, options: LoadOptionsT, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._series: dict[str, dict[str, Any]] = {}
        """Name of a run -> what its picture is drawn from."""

    @abstractmethod
    def _cluster(self) -> Cluster:
        """Where the sides begin."""

    def _open(
        self, process: SideProcess, name: str, offered: int, at_most: int | None = None
    ) -> Side:
        """A side with all keys, and the rate that it gets."""
        options, begin = self._options, self._cluster()
        self._steps.step(f"{process.kind}: filling {size_name(options.keys)} keys")
        side = Side.open(process, options.keys, begin.executors, begin.store, begin.parallelism)
        side.choose_rate(
            f"{self.name}.{name}",
            self._result,
            self._steps,
            given=options.rate,
            offered=offered,
            seconds=options.probe,
            at_most=at_most,
        )
        return side

    def _write(self, title: str) -> None:
        """Keep the timelines, and draw them."""
        options = self._options
        if options.timelines is not None:
            options.timelines.parent.mkdir(parents=True, exist_ok=True)
            options.timelines.write_text(json.dumps(self._series) + "\n")
        if options.images is not None:
            _timeline_plot.write(self._series, title, options.images, self._result.name)
