"""From a topic of Kafka to a topic of Kafka: event latency by the producer's time stamp.

A count and the latest time per key, over a real broker. Events come at a fixed rate, whether a
side keeps up or not. An event's latency is from when it was handed to the producer's client to when
a reader of committed records has the first record of its key that includes it: every event counts,
not only the last of a batch. Events of the first seconds, and those until the first answer, are
left out.

- Millrace with its exactly-once sink (a transaction per writer and epoch), and with the one that is
  at least once.
- Spark's micro-batches, with state in RocksDB; its connector writes at least once.
- Spark's real-time trigger, where it can do the job; it is left out, with the reason, where not.
- Flink SQL is not among them: its connector in the registries is for an earlier Flink than the one
  `make peers` installs.

Before any time, each record that came out is compared with the events, and the last count of every
key with their number. A side that has not answered all events `PATIENCE` seconds after the last was
sent does not keep up: `kept_up` is 0, and it has no latencies at this rate. Producer, broker,
engine and consumer share the machine, so at high rates on few cores the figures are of all four.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from millrace_lab.bench._contract import BenchmarkError
from millrace_lab.bench._events import Answered, Sent
from millrace_lab.bench._kafka import KafkaBenchmark, why_not
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sides.kafka_load import key_of
from millrace_lab.bench._sizes import size_name

__all__ = ["NAME", "SIDES", "EndToEnd", "Options", "run", "why_not"]

NAME = "end-to-end"
EXACTLY_ONCE = "millrace"
SIDES = (EXACTLY_ONCE, "millrace-at-least-once", "spark", "spark-real-time")


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    rates: tuple[int, ...] = (1_000, 10_000, 100_000)
    keys: int = 1_000
    sides: tuple[str, ...] = SIDES
    warm: float = 15.0
    seconds: float = 45.0
    """How long events come, those of the beginning included."""

    def quick(self) -> Options:
        return replace(
            self,
            rates=(500,) if self.rates == Options.rates else self.rates,
            keys=min(self.keys, 50),
            warm=5.0,
            seconds=12.0,
        )


class EndToEnd(KafkaBenchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def _measure_sides(self) -> None:
        self._result.figure("keys", self._options.keys)
        for side in self._options.sides:
            with self._side(side) as process:
                self._measure_side(side, process)

    def _measure_side(self, side: str, process: SideProcess) -> None:
        for rate in self._options.rates:
            try:
                self._measure(side, process, rate)
            except BenchmarkError as error:
                if side != "spark-real-time":
                    raise
                reason = str(error).splitlines()[0]
                self._steps.say(f"  {side} cannot do it, and is left out: {reason}")
                return

    def _measure(self, side: str, process: SideProcess, rate: int) -> None:
        options = self._options
        label = f"{side}.{size_name(rate)}"
        self._steps.step(f"{side}: {size_name(rate)} events/s")
        with self._started(process, f"{side}-{rate}") as topic:
            stamps = self._send(
                "send", topic, rate=rate, seconds=options.seconds, keys=options.keys
            )
            sent = Sent(key_of(np.arange(len(stamps)), options.keys), stamps)
            kept_up = self._await(process, len(stamps))
            found = self._answers(process, sent)
        self._compare(label, found, complete=kept_up, once=side == EXACTLY_ONCE)
        self._result.figure(f"kept_up.{label}", kept_up)
        if kept_up:
            self._add(label, sent, found)
        else:
            self._steps.say(f"  {label}: it does not keep up")

    def _add(self, label: str, sent: Sent, found: Answered) -> None:
        began = sent.stamps[0] + self._options.warm * 1e6
        # What had to wait for the query to start says nothing about it.
        first = sent.stamps[0] + found.latencies[0] * 1e6
        chosen = found.latencies[sent.stamps > max(began, first)]
        if not len(chosen):
            raise BenchmarkError(
                f"{label}: the first answer came after the last event. Choose a lower rate, or an "
                "idle machine."
            )
        figure = self._result.figure
        for part in (50, 99):
            figure(f"latency_ms.{label}.p{part}", 1e3 * float(np.percentile(chosen, part)))
        figure(f"latency_ms.{label}.max", 1e3 * float(chosen.max()))
        ended = float((sent.stamps / 1e6 + found.latencies).max())
        figure(f"rows_per_s.{label}", len(sent.stamps) / (ended - sent.stamps[0] / 1e6))
        self._steps.say(f"  {label}: p50 {self._result.figures[f'latency_ms.{label}.p50']:.0f} ms")

    def _conclude(self) -> None:
        """How much longer the others' events take than those of the exactly-once sink."""
        figures = self._result.figures
        for rate in self._options.rates:
            for part in ("p50", "p99"):
                ours = figures.get(f"latency_ms.{EXACTLY_ONCE}.{size_name(rate)}.{part}")
                for side in self._options.sides:
                    theirs = figures.get(f"latency_ms.{side}.{size_name(rate)}.{part}")
                    if side != EXACTLY_ONCE and ours is not None and theirs is not None:
                        name = f"end_to_end.{side}.{size_name(rate)}.{part}"
                        self._result.ratio(name, theirs / ours)


run = EndToEnd.measure
