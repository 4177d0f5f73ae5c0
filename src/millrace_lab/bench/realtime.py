"""Real time: how long an event takes from a topic of Kafka through state to a topic.

A count and the latest time per key, with a fixed rate of events, whether a side keeps up or not.
Before they come, one event per key has filled the state. Epochs and batches in real time are 10
seconds long, and the latencies are of all events, those at the boundary of two epochs included;
`within` is the same in one epoch that is longer than the run.

- `latency_ms.SIDE.PROGRAM.KEYS.RATE.*`: of each event, from when it was handed to the producer's
  client to when a reader of committed records has the first record of its key that includes it.
  Events of the first seconds are left out.
- `rows_per_s.SIDE`: a burst of events, as fast as the producer's client takes them, until the last
  of them is answered.

Sides: Millrace and Spark in real time; Millrace's epochs and Spark's micro-batches, back to back,
with a sink that is at least once as well. Flink SQL is not among them: its connector in the
registries is for an earlier Flink than the one `make peers` installs.

Before any time, each record that came out is compared with the events, and the last count of every
key with their number. A side that has not answered all events two minutes after the last was sent
does not keep up: `kept_up` is 0, and it has no latencies at this rate. Producer, broker, engine and
consumer share the machine, so at high rates on few cores the figures are of all four.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from millrace.arrays import Float64Array
from millrace_lab.bench._contract import BenchmarkError
from millrace_lab.bench._events import Sent
from millrace_lab.bench._kafka import KafkaBenchmark, why_not
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sides.kafka_load import key_of
from millrace_lab.bench._sizes import size_name

__all__ = ["NAME", "SIDES", "Options", "RealTime", "run", "why_not"]

NAME = "realtime"
OURS, SPARK = "millrace-real-time", "spark-real-time"
SIDES = (OURS, SPARK, "millrace-at-least-once", "spark")
RATE = 2_000
"""At which the bars are, and programs and sizes are compared."""
WITHIN = "within"
PROGRAMS = ("aggregate", "window", "processor")
LONG_EPOCH = "30 minutes"
LOAD_PATIENCE = 600.0
PARTS = (50, 90, 99)


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    rates: tuple[int, ...] = (200, RATE, 20_000, 100_000)
    keys: tuple[int, ...] = (100_000, 1_000_000)
    """The first for everything, the others at one rate."""
    sides: tuple[str, ...] = SIDES
    warm: float = 10.0
    seconds: float = 60.0
    """How long events come, those of the beginning included."""
    burst: int = 500_000

    def quick(self) -> Options:
        return replace(
            self,
            rates=(200, RATE) if self.rates == Options.rates else self.rates,
            keys=(min(1_000, *self.keys),),
            warm=5.0,
            seconds=25.0,
            burst=min(self.burst, 50_000),
        )


@dataclass(frozen=True)
class Case:
    """What a side does, with how many keys, at which rate; without one, a burst."""

    program: str
    keys: int
    rate: int | None

    @property
    def label(self) -> str:
        rate = "burst" if self.rate is None else size_name(self.rate)
        return f"{self.program}.{size_name(self.keys)}.{rate}"


class RealTime(KafkaBenchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def _measure_sides(self) -> None:
        for side in self._options.sides:
            with self._side(side) as process:
                for case in self._cases(side):
                    self._measure(side, process, case)

    def _cases(self, side: str) -> list[Case]:
        o = self._options
        first, *others = o.keys
        cases = [Case("aggregate", first, rate) for rate in o.rates]
        if side in (OURS, SPARK):
            cases.append(Case(WITHIN, first, RATE))
            cases += [Case("aggregate", keys, RATE) for keys in others]
        if side == OURS:
            cases += [Case(program, first, RATE) for program in PROGRAMS[1:]]
        return [*cases, Case("aggregate", first, None)]

    def _measure(self, side: str, process: SideProcess, case: Case) -> None:
        label = f"{side}.{case.label}"
        self._steps.step(label)
        is_within = case.program == WITHIN
        settings = {"epoch": LONG_EPOCH} if is_within else {"program": case.program}
        with self._started(process, label.replace(".", "-"), **settings) as topic:
            loaded = self._send("load", topic, keys=case.keys)
            if not self._await(process, len(loaded), LOAD_PATIENCE):
                raise BenchmarkError(f"{label}: {case.keys} keys were not loaded in ten minutes")
            load = {"keys": case.keys}
            if case.rate is None:
                stamps = self._send("burst", topic, **load, number=self._options.burst)
            else:
                seconds = self._options.seconds
                stamps = self._send("send", topic, **load, rate=case.rate, seconds=seconds)
            keys = key_of(np.arange(len(stamps)), case.keys)
            sent = Sent(
                np.concatenate([np.arange(case.keys), keys]), np.concatenate([loaded, stamps])
            )
            kept_up = self._await(process, len(sent.stamps))
            found = self._answers(process, sent)
        self._compare(label, found, complete=kept_up, once=False)
        self._result.figure(f"kept_up.{label}", kept_up)
        if not kept_up:
            self._steps.say(f"  {label}: it does not keep up")
            return
        latencies = found.latencies[len(loaded) :]
        if case.rate is None:
            ended = float((stamps / 1e6 + latencies).max())
            self._result.figure(f"rows_per_s.{side}", len(stamps) / (ended - stamps[0] / 1e6))
            self._steps.say(f"  {self._result.figures[f'rows_per_s.{side}']:,.0f} rows/s")
        else:
            self._add(label, latencies[stamps > stamps[0] + self._options.warm * 1e6])

    def _add(self, label: str, latencies: Float64Array) -> None:
        figure = self._result.figure
        found = {f"p{part}": float(np.percentile(latencies, part)) for part in PARTS}
        found["max"] = float(latencies.max())
        for part, seconds in found.items():
            figure(f"latency_ms.{label}.{part}", 1e3 * seconds)
        shown = ", ".join(f"{part} {1e3 * seconds:.1f}" for part, seconds in found.items())
        self._steps.say(f"  {label}: {shown} ms")

    def _conclude(self) -> None:
        result, figures = self._result, self._result.figures
        keys = size_name(self._options.keys[0])
        for side in self._options.sides:
            for rate in self._options.rates:
                for part in ("p50", "p99"):
                    case = f"aggregate.{keys}.{size_name(rate)}.{part}"
                    ours = figures.get(f"latency_ms.{OURS}.{case}")
                    theirs = figures.get(f"latency_ms.{side}.{case}")
                    if side != OURS and ours is not None and theirs is not None:
                        result.ratio(f"realtime.{side}.{size_name(rate)}.{part}", theirs / ours)
        case = f"aggregate.{keys}.{size_name(RATE)}"
        for part, most in (("p50", 8.0), ("p90", 15.0), ("p99", 200.0)):
            self._at_most(f"latency_ms.{OURS}.{case}.{part}", most)
        self._at_most(f"latency_ms.{OURS}.{WITHIN}.{keys}.{size_name(RATE)}.p99", 20.0)
        name = f"realtime.{SPARK}.{size_name(RATE)}.p99"
        if name in result.ratios:
            result.at_least(name, result.ratios[name], 1.0)
        rows = [figures.get(f"rows_per_s.{side}") for side in (OURS, SPARK)]
        if None not in rows:
            ours, theirs = (float(row or 0) for row in rows)
            sustained = result.ratio("realtime.sustained", ours / theirs)
            result.at_least("realtime.sustained", sustained, 3.0)

    def _at_most(self, name: str, most: float) -> None:
        value = self._result.figures.get(name)
        if value is not None:
            self._result.at_most(name, value, most)


run = RealTime.measure
