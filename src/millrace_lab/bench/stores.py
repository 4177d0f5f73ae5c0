"""Epochs on a local disk, in a bucket and on HDFS: their time, their requests, a live rescale.

The same keyed count as in `rescale`, on the same executors, with rows at a fixed rate. Each store
is measured as it is, and again with every request made late by `LATENCY_MS` and no quicker than
`MB_PER_S` allows, as in a data centre. The delay is in the store's client, in the driver and in
every worker, so it is there for Spark's logs too.

- `epoch_ms.STORE.p50`, `p99`: Spark's trigger to the commit, of the epochs before the first move.
- `requests_per_epoch.STORE.OPERATION`: of the driver and all shards, in the same time.
  `spark_OPERATION` are those for Spark's own logs; on a local disk the JVM writes these itself, and
  nobody counts. `inbox_OPERATION` are looks for requests to the query, which go by the clock, not
  by epochs. A store wrapper counts them, so what the client repeats by itself is one.
- `rescale.STORE.*`: 2 -> 4 -> 2 executors by the strategy `live`, as `rescale` has it.

After each run the state is compared with one Spark batch over the rows that were committed. A
store whose server is not installed is left out, and named. S3 is MinIO, or moto's server where
there is no MinIO: a Python process whose times say little about S3. `versions` says which.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._moves import (
    MOVES,
    add_figures,
    add_worse,
    measure_both,
    there_and_back,
)
from millrace_lab.bench._openloop import ROOT, TRIGGER, Side, Store
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._timeline import Timeline
from millrace_lab.faults import recording
from millrace_lab.servers import ServerFailedError, ServerMissingError, hdfs, s3

NAME = "stores"
STORES = ("local", "s3", "hdfs")
LATENCY_MS, MB_PER_S = 20.0, 125.0
SLOW = "slow"
BUCKET = "millrace-bench"
BAR_KEYS = 1_000_000


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = BAR_KEYS
    rate: int = 20_000
    stores: tuple[str, ...] = STORES
    slow: bool = True
    few: int = 2
    many: int = 4
    warm: float = 5.0
    steady: float = 20.0

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 20_000),
            rate=min(self.rate, 4_000),
            few=1,
            many=2,
            warm=1.0,
            steady=4.0,
        )


@dataclass(frozen=True)
class Place:
    """Where the locations of a run are."""

    name: str
    root: str | None
    """The URL below which they are; None for the side's own folder."""
    variables: dict[str, str]


class Stores(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        options, result = self._options, self._result
        for what in ("keys", "rate", "few", "many"):
            result.figure(what, getattr(options, what))
        measured = 0
        for kind in options.stores:
            try:
                with self._place(kind) as place:
                    self._measure(place, Store())
                    if options.slow:
                        self._measure(place, Store(LATENCY_MS, MB_PER_S))
                    measured += 1
            except ServerMissingError as error:
                self._steps.say(f"  {kind} is left out: {error}")
            except ServerFailedError as error:
                raise BenchmarkError(f"{kind}: {error}") from error
        if not measured:
            raise BenchmarkError("none of the stores is installed: run make servers.")
        return result

    @contextmanager
    def _place(self, kind: str) -> Iterator[Place]:
        """A store of a kind, on a server of its own while this is open."""
        self._steps.step(f"{kind}: starting")
        folder = self._workdir / f"{kind}-server"
        folder.mkdir()
        if kind == "local":
            yield Place(kind, None, {})
        elif kind == "hdfs":
            with hdfs.hdfs(folder) as root:
                yield Place(kind, root, {})
        else:
            with self._s3(folder) as port:
                endpoint = f"http://127.0.0.1:{port}"
                s3.make_bucket(endpoint, BUCKET)
                variables = {**s3.environment(endpoint), "AWS_ALLOW_HTTP": "true"}
                yield Place(kind, f"s3://{BUCKET}", variables)
        shutil.rmtree(folder)

    @contextmanager
    def _s3(self, folder: Path) -> Iterator[int]:
        if s3.has_minio():
            self._result.versions["s3"] = "MinIO"
            with s3.minio(folder) as port:
                yield port
        else:
            self._steps.say("  s3: there is no MinIO, so moto's server stands for it, and is slow")
            self._result.versions["s3"] = "moto"
            with s3.moto(folder) as port:
                yield port

    def _measure(self, place: Place, store: Store) -> None:
        options = self._options
        name = f"{place.name}_{SLOW}" if store.is_slow else place.name
        requests = self._workdir / f"requests-{name}"
        variables = {**place.variables, **recording.environment(requests)}
        kind = "millrace_cluster"
        if place.root is not None:
            kind = "millrace_remote"
            variables[ROOT] = f"{place.root}/{name}"
        store = replace(store, is_remote=place.root is not None, variables=variables)
        workdir = self._workdir / name
        with SideProcess(kind, workdir, memory="1g") as process:
            self._steps.step(f"{name}: filling {size_name(options.keys)} keys")
            side = Side.open(process, options.keys, options.many, store, options.few)
            side.set_rate(options.rate)
            side.warm_up(options.many, options.warm)
            self._steps.step(f"{name}: {options.few} to {options.many} and back")
            side.begin("run", options.warm + options.steady, parallelism=options.few)
            before = process.call("progress")
            sizes = (options.many, options.few)
            moves = there_and_back(side, "run", "live", sizes, options.steady)
            process.call("stop")
            timeline = side.timeline("run")
            side.compare(self._result, process, "run", name, workdir)
        self._add(name, before, timeline, moves, requests)
        shutil.rmtree(workdir)

    def _add(
        self,
        name: str,
        before: list[dict[str, Any]],
        timeline: Timeline,
        moves: list[dict[str, Any]],
        requests: Path,
    ) -> None:
        result, steady = self._result, self._options.steady
        epochs = [epoch["ms"] for epoch in before[1:]]
        if not epochs:
            raise BenchmarkError(f"{name}: no epoch before the move; choose a lower --rate.")
        for part in (50, 99):
            result.figure(f"epoch_ms.{name}.p{part}", float(np.percentile(epochs, part)))
        until = moves[0]["requested"]
        counted = per_epoch(recording.read(requests), timeline, until - steady, until)
        for operation, number in counted.items():
            result.figure(f"requests_per_epoch.{name}.{operation}", number)
        measured = measure_both(timeline, moves, steady, TRIGGER)
        prefix = f"rescale.{name}"
        for label, found in zip(MOVES, measured, strict=True):
            add_figures(result, f"{prefix}.{label}", found)
        add_worse(result, prefix, measured)
        ratio = result.figures[f"{prefix}.p99_during_over_before"]
        self._steps.say(
            f"  {name}: epoch p50 {result.figures[f'epoch_ms.{name}.p50']:.0f} ms, requests "
            f"{sum(counted.values()):.1f}, p99 during/before {ratio:.3g}"
        )
        if self._options.keys >= BAR_KEYS:
            self._bars(name)

    def _bars(self, name: str) -> None:
        figures, result = self._result.figures, self._result
        for figure, target in (
            (f"requests_per_epoch.{name}.create", 1.0),
            (f"requests_per_epoch.{name}.put", float(self._options.few)),
            (f"requests_per_epoch.{name}.list", 0.0),
            (f"rescale.{name}.p99_during_over_before", 1.25),
            (f"rescale.{name}.epochs_missed", 0.0),
        ):
            result.at_most(figure, figures[figure], target)


def per_epoch(
    requests: list[recording.Request], timeline: Timeline, since: float, until: float
) -> dict[str, float]:
    """Requests of each operation per epoch that was committed in a stretch of time."""
    epochs = sum(since <= point.committed < until for point in timeline.points)
    if not epochs:
        raise BenchmarkError("no epoch was committed in the time whose requests are counted.")
    counted = Counter(
        _prefix(request) + request.operation for request in requests if since <= request.at < until
    )
    named = {operation: counted.pop(operation, 0) for operation in recording.OPERATIONS}
    return {operation: number / epochs for operation, number in {**named, **counted}.items()}


def _prefix(request: recording.Request) -> str:
    return "spark_" if request.is_sparks else "inbox_" if request.is_inboxs else ""


run = Stores.measure
