"""What each kind of state costs, at some numbers of keys; and large lists and maps.

It runs on the state layer alone (`_layer`), in one process on one core: with Spark around it, this
is what one shard does. For each kind and number of keys:

- `updates_per_s`: a state read and changed per key, in epochs of at most `changed` keys; the
  operator's part, from the epoch's rows to the changed rows.
- `reads_per_s`: the same, but nothing is changed. `scan_rows_per_s`: all rows to Arrow.
- `repartition_rows_per_s`: the rows over the time until four new shards own what one had: each
  opens replicas of its key groups from the log and looks up a row in every key group.
- `merge_rows_per_s`: a new base of all key groups, up to the file.
- `checkpoint_ms`, `checkpoint_bytes`: composing and storing an epoch's segments and manifest,
  merges included. `state_bytes`: all of the state, merged.

A collection has four entries per key, so at a million keys four million rows. What was measured
must also be right: the state of some keys is compared with what the updates must have made of it.

`big.*` is one list, map or set with very many entries, beside a small one: an epoch that appends or
changes one entry.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from millrace.arrays import Int64Array
from millrace.ids import Epoch
from millrace.log.segment import encode_segment
from millrace.state.sections import merged
from millrace_lab.bench._backends.opening import open_parts
from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import Result
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._state_kinds import KINDS, Kind, Subject, subject
from millrace_lab.bench._state_layer import Layer, Spent

NAME = "state-types"
SEED = 7
SHARDS = 4
CHECKED = 5_000
"""How many keys' states are compared at the end."""
SMALL = 100
BIG_CHUNK = 100_000


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    changed: int = 100_000
    """The most keys that an epoch changes."""
    epochs: int = 5
    big: int = 1_000_000
    big_epochs: int = 40

    def quick(self) -> Options:
        return replace(
            self,
            keys=(1_000, 20_000) if self.keys == Options.keys else self.keys,
            changed=min(self.changed, 20_000),
            epochs=min(self.epochs, 3),
            big=min(self.big, 50_000),
            big_epochs=min(self.big_epochs, 10),
        )


class StateTypes(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        self._warm()
        for kind in KINDS:
            for keys in self._options.keys:
                self._measure(kind, keys)
        for name in ("list", "map", "set"):
            self._big(next(kind for kind in KINDS if kind.name == name))
        return self._result

    def _warm(self) -> None:
        """Compile and load what all kinds use, so that the first does not pay for it."""
        self._steps.step("warming up")
        for kind in KINDS:
            keys = np.arange(100)
            layer = self._layer(kind, subject(kind), "warm", kind.fill, keys, len(keys))
            layer.epoch(keys)

    def _layer(
        self,
        kind: Kind,
        processor: Subject,
        name: str,
        fill: Callable[..., object],
        keys: Int64Array,
        at_once: int,
    ) -> Layer:
        layer = Layer(self._workdir / f"{kind.name}-{name}", processor)
        processor.action = fill
        for first in range(0, len(keys), at_once):
            layer.epoch(keys[first : first + at_once])
        return layer

    def _measure(self, kind: Kind, keys: int) -> None:
        options, size = self._options, f"{kind.name}.{size_name(keys)}"
        self._steps.step(f"{kind.name}, {size_name(keys)} keys: filling")
        at_once = min(keys, options.changed)
        processor = subject(kind)
        every = np.arange(keys)
        layer = self._layer(kind, processor, size_name(keys), kind.fill, every, at_once)
        self._steps.step(f"{kind.name}, {size_name(keys)} keys: measuring")
        random = np.random.default_rng(SEED)
        updates = np.zeros(keys, np.int64)
        processor.action = kind.update
        spent = []
        for _ in range(options.epochs):
            chosen = random.choice(keys, at_once, replace=False)
            updates[chosen] += 1
            spent.append(layer.epoch(chosen))
        self._updated(size, spent, at_once)
        processor.action = kind.read
        seconds = []
        for _ in range(options.epochs):
            rows = layer.input(random.choice(keys, at_once, replace=False))
            seconds.append(_timed(lambda rows=rows: layer.apply(rows)))  # type: ignore[misc]
        self._result.figure(f"reads_per_s.{size}", at_once / statistics.median(seconds))
        self._whole(size, layer)
        self._check(kind, keys, layer, processor, updates)

    def _updated(self, size: str, spent: list[Spent], changed: int) -> None:
        figure = self._result.figure
        figure(f"updates_per_s.{size}", changed / statistics.median(s.apply for s in spent))
        figure(f"checkpoint_ms.{size}", 1000 * statistics.median(s.write for s in spent))
        figure(f"checkpoint_bytes.{size}", statistics.mean(s.bytes for s in spent))
        figure(f"updates_per_checkpoint.{size}", changed)

    def _whole(self, size: str, layer: Layer) -> None:
        """What is done with the state as a whole."""
        rows, repeats = layer.rows, range(3)
        replicas = layer.replicas.values()
        scan = [_timed(lambda: [r.read(layer.groups) for r in replicas]) for _ in repeats]
        self._result.figure(f"scan_rows_per_s.{size}", rows / statistics.median(scan))
        opening = [_timed(lambda: open_parts(layer, SHARDS)) for _ in repeats]
        self._result.figure(f"repartition_rows_per_s.{size}", rows / statistics.median(opening))
        written: list[int] = []
        merging = [_timed(lambda: written.append(self._merge(layer))) for _ in repeats]
        self._result.figure(f"merge_rows_per_s.{size}", rows / statistics.median(merging))
        self._result.figure(f"state_bytes.{size}", written[-1])

    def _merge(self, layer: Layer) -> int:
        """A new base of all key groups in a file; returns its bytes."""
        total = 0
        for number, replica in enumerate(layer.replicas.values()):
            section = merged(replica, layer.groups)
            path = self._workdir / f"merged-{number}.arrow"
            buffer, entry = encode_segment(path.name, Epoch(replica.version + 1), [section])
            path.write_bytes(memoryview(buffer))
            total += entry.bytes
        return total

    def _check(
        self, kind: Kind, keys: int, layer: Layer, processor: Subject, updates: Int64Array
    ) -> None:
        sample = np.linspace(0, keys - 1, min(keys, CHECKED)).astype(np.int64)
        processor.action, processor.shown = None, kind.total
        output = layer.apply(layer.input(sample)).output
        found = dict(zip(*(column.to_pylist() for column in output.columns), strict=True))
        right = {k: kind.expected(k, int(updates[k])) for k in sample.tolist()}
        what = f"{kind.name}: the state of {keys:,} keys is not what the updates make of it"
        self._result.compare(what, found == right)

    def _big(self, kind: Kind) -> None:
        """An epoch that changes one entry of a very large collection, and of a small one."""
        options = self._options
        size = size_name(options.big)
        self._steps.step(f"{kind.name} of {size} entries: filling")
        small, large = 0, 1
        processor = subject(kind)
        held = {small: SMALL, large: options.big}
        layer = Layer(self._workdir / f"{kind.name}-big", processor)
        for key, entries in held.items():
            for first in range(0, entries, BIG_CHUNK):
                chunk = range(first, min(first + BIG_CHUNK, entries))
                processor.action = _filler(kind, chunk)
                layer.epoch(np.asarray([key]))
        self._steps.step(f"{kind.name} of {size} entries: changing one at a time")
        spent: dict[int, list[Spent]] = {small: [], large: []}
        for turn in range(-3, options.big_epochs):
            for key, entries in held.items():
                processor.action = _changer(kind, entries, turn)
                took = layer.epoch(np.asarray([key]))
                if turn >= 0:
                    spent[key].append(took)
        verb = {"list": "append", "map": "set", "set": "add"}[kind.name]
        milliseconds, written = {}, {}
        for key, entries in held.items():
            name = f"{kind.name}_{verb}.{size_name(entries)}"
            times = [1000 * (s.apply + s.write) for s in spent[key]]
            milliseconds[key] = self._result.figure(f"big.ms.{name}", statistics.median(times))
            bytes_ = statistics.mean(s.bytes for s in spent[key])
            written[key] = self._result.figure(f"big.bytes.{name}", bytes_)
        for what, by_key in (("ms", milliseconds), ("bytes", written)):
            name = f"big.{what}.{kind.name}_{verb}.{size}_over_{size_name(SMALL)}"
            over = self._result.figure(name, by_key[large] / by_key[small])
            if options.big == Options.big:
                self._result.at_most(name, over, 2)
        processor.action, processor.shown = None, lambda s: len(s)
        output = layer.apply(layer.input(np.asarray([small, large]))).output
        sizes = dict(zip(*(column.to_pylist() for column in output.columns), strict=True))
        # A map's entries are replaced, those of the others are added.
        more = 0 if kind.name == "map" else options.big_epochs + 3
        right = {key: entries + more for key, entries in held.items()}
        self._result.compare(f"{kind.name} of {size}: its size is {sizes}", sizes == right)


def _filler(kind: Kind, chunk: range) -> Callable[..., object]:
    if kind.name == "list":
        return lambda s, k: s.extend(chunk)
    if kind.name == "map":
        return lambda s, k: s.update((n, n) for n in chunk)
    return lambda s, k: [s.add(n) for n in chunk]


def _changer(kind: Kind, entries: int, turn: int) -> Callable[..., object]:
    if kind.name == "list":
        return lambda s, k: s.append(turn)
    if kind.name == "map":
        return lambda s, k: s.set((turn * 7919) % entries, turn)
    return lambda s, k: s.add(entries + 3 + turn)


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


run = StateTypes.measure
