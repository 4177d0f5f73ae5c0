"""The same operations on different state engines, as the literature compares them.

Millrace's table, with the user's Python for each key (`millrace`) and without (`millrace_table`, an
aggregate); a Python dict that is pickled; RocksDB by rocksdict; Redis on loopback, pipelined; and
Spark's own RocksDB state store, driven inside its JVM. Each is in a process of its own on one
machine, without a stream around it: `_backends` says how each keeps its state.

For each engine, kind of state and number of keys, in this order:

- `updates_per_s`: keys whose state is read and changed, `changed` of them in an epoch.
- `checkpoint_ms`, `checkpoint_bytes`: that which makes an epoch's changes durable.
- `reads_per_s`: one thing of each of `changed` keys. `scan_keys_per_s`: one query over all of it.
- `restore_ms`: a second state of the last checkpoint, up to its first answers.
- `repartition_ms`: four states of a quarter of the keys each. `merge_ms`: one of the four.
- `peak_mb`: memory of all processes of the engine, servers and JVM included, by PSS.

Reads and scans must give the right sums, and the totals of all keys are compared with arithmetic
three times: in the state itself, in the restored one, and in the merged one.

A dict is not shared, not durable between checkpoints and not larger than memory; Redis is reached
over loopback and may serve others; only Millrace and Spark's store know versions. Times are not the
whole of a choice: see `docs/state-engines.md`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.bench import _backends, _usage
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import BenchmarkError, Result
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sides.backend import drawn
from millrace_lab.bench._sizes import size_name
from millrace_lab.servers.redis import is_installed as redis_is_installed

NAME = "backends"
SEED = 11
PARTS = 4


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: tuple[int, ...] = (100_000, 5_000_000)
    changed: int = 100_000
    """Keys of an epoch."""
    epochs: int = 5
    backends: tuple[str, ...] = _backends.BACKENDS
    kinds: tuple[str, ...] = _backends.KINDS

    def quick(self) -> Options:
        return replace(
            self,
            keys=(20_000,) if self.keys == Options.keys else self.keys,
            changed=min(self.changed, 10_000),
            epochs=min(self.epochs, 2),
        )


class Backends(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        options = self._options
        self._result.figure("changed", options.changed)
        measured = 0
        for name in options.backends:
            if name == "redis" and not redis_is_installed():
                self._steps.say("  redis is left out: Redis is not installed, run make servers")
                continue
            for kind in options.kinds:
                if kind in _backends.kinds_of(name):
                    for keys in options.keys:
                        self._measure(name, kind, keys)
                        measured += 1
        if not measured:
            raise BenchmarkError("there is nothing to measure: none of these backends is there.")
        return self._result

    def _measure(self, name: str, kind: str, keys: int) -> None:
        # A process for each: memory that one has taken is not another's.
        workdir = self._workdir / f"{kind}-{size_name(keys)}"
        with (
            SideProcess(f"backend-{name}", workdir) as side,
            _usage.sampling(side.session) as samples,
        ):
            self._steps.step(f"{name}: {kind}, filling {size_name(keys)} keys")
            side.call("begin", kind=kind, keys=keys)
            run = _Run(side, kind, keys, self._result, f"{name}.{kind}.{size_name(keys)}")
            self._steps.step(f"{name}: {kind}, {size_name(keys)} keys")
            run.change(min(self._options.changed, keys), self._options.epochs)
            run.look(min(self._options.changed, keys), self._options.epochs)
            run.move()
            run.check(workdir)
            side.call("end")
            peak = max(sample.memory or 0 for sample in samples())
        self._result.figure(f"peak_mb.{run.label}", peak / 1e6)


class _Run:
    """One engine with one kind and number of keys."""

    def __init__(self, side: SideProcess, kind: str, keys: int, result: Result, label: str) -> None:
        self._side = side
        self._kind = kind
        self._keys = np.arange(keys)
        self._updates: Int64Array = np.zeros(keys, np.int64)
        self._result = result
        self.label = label

    def _figure(self, name: str, value: float) -> None:
        self._result.figure(f"{name}.{self.label}", value)

    def change(self, number: int, epochs: int) -> None:
        """Updates and checkpoints; the first epoch is not measured."""
        measured = []
        for epoch in range(epochs + 1):
            seed = SEED + epoch
            measured.append(self._side.call("update", seed=seed, number=number))
            self._updates[drawn(seed, len(self._keys), number)] += 1
        measured = measured[1:]
        self._figure("updates_per_s", number / _median(measured, "update_s"))
        self._figure("checkpoint_ms", 1e3 * _median(measured, "checkpoint_s"))
        written = statistics.mean(epoch["checkpoint_bytes"] for epoch in measured)
        self._figure("checkpoint_bytes", written)

    def look(self, number: int, epochs: int) -> None:
        """Point reads and a scan."""
        reads = []
        for epoch in range(epochs):
            seed = 2 * SEED + epoch
            answer = self._side.call("read", seed=seed, number=number)
            chosen = drawn(seed, len(self._keys), number)
            right = _backends.expected_read(self._kind, chosen, self._updates[chosen])
            self._compare("what it reads", answer["answer"] == right)
            reads.append(answer)
        self._figure("reads_per_s", number / _median(reads, "seconds"))
        scans = [self._side.call("scan") for _ in range(3)]
        total = int(self._totals().sum())
        self._compare("its scan", all(scan["answer"] == total for scan in scans))
        self._figure("scan_keys_per_s", len(self._keys) / _median(scans, "seconds"))

    def move(self) -> None:
        """Restore, divide, unite: once each, because each leaves something behind."""
        for what in ("restore", "repartition", "merge"):
            seconds = self._side.call("move", what=what, parts=PARTS)
            self._figure(f"{what}_ms", 1e3 * seconds)

    def check(self, workdir: Path) -> None:
        """The totals of all keys, wherever they are."""
        for state in _backends.STATES:
            path = workdir / "totals.npy"
            self._side.call("totals", state=state, path=str(path))
            found = np.load(path)
            self._compare(f"the {state} state", np.array_equal(found, self._totals()))
            path.unlink()

    def _totals(self) -> Int64Array:
        return _backends.expected_total(self._kind, self._keys, self._updates)

    def _compare(self, what: str, same: bool) -> None:
        self._result.compare(f"{self.label}: {what} is not what the updates make of it", same)


def _median(measured: list[dict[str, Any]], part: str) -> float:
    return float(statistics.median(each[part] for each in measured))


run = Backends.measure
