"""Epochs whose rows reach each shard in frames, as in real time, without Spark."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from millrace.epoch.commit import Times
from millrace.epoch.local import LocalShards, ShardRun
from millrace.epoch.rows import encode
from millrace.epoch.shard import ShardTask
from millrace.ids import Shard
from millrace.operators import Change
from millrace.operators.input import Input
from millrace.operators.operator import MAIN_OUTPUT
from millrace.spark.realtime.frames import OPEN, Opening
from millrace.spark.realtime.worker import ResidentShard, ResidentTask
from millrace.spark.shard import encode_times
from millrace.testing.epochs import OperatorHarness

Cut = Callable[[int], Sequence[int]]
"""The rows of each frame, given how many there are."""


def write_opening(stream: BinaryIO, opening: Opening) -> None:
    """What `ShardSession.java` writes first."""
    texts = (str(opening.shard), opening.executor, opening.moment)
    parts = [*(text.encode() for text in texts), opening.schema, opening.task]
    stream.write(struct.pack(">BI", OPEN, len(parts)))
    for part in parts:
        stream.write(struct.pack(">I", len(part)) + part)


class ResidentShards(LocalShards):
    """The shards of an operator, each fed frame by frame."""

    cut: Cut

    def opening(self, times: Times, shard: int, schema: pa.Schema) -> Opening:
        code = getattr(self.operator, "code", None)
        task = ShardTask.of(
            self.journal,
            self.operator,
            self.assignment,
            self.index_budget,
            spec=json.dumps(self.operator.spec()),
            code=None if code is None else code(),
        )
        sent = ResidentTask(task, (MAIN_OUTPUT,)).encode()
        return Opening(shard, "1", encode_times(times), schema.serialize().to_pybytes(), sent)

    def run(self, times: Times, steps: Sequence[Sequence[Input]]) -> list[ShardRun]:
        return [self._run(times, shard, given) for shard, given in enumerate(steps)]

    def _run(self, times: Times, shard: int, given: Sequence[Input]) -> ShardRun:
        (rows,) = given
        table = encode(rows).combine_chunks()
        resident = ResidentShard(self.opening(times, shard, table.schema), self.cache(Shard(shard)))
        answers = []
        start = 0
        for count in self.cut(table.num_rows) if table.num_rows else ():
            (batch,) = table.slice(start, count).to_batches()
            answers += resident.apply(batch.serialize().to_pybytes())
            start += count
        assert start == table.num_rows
        answers += resident.finish()
        return ShardRun([Change({}, answer) for answer in answers], resident.seal())


def in_frames(harness: OperatorHarness[Any], cut: Cut) -> Any:
    """A harness of the same state, whose epochs run in frames from now on."""
    before = harness._shards
    shards = ResidentShards(before.journal, before.operator, before.assignment)
    shards.cut = cut
    harness._shards = shards
    return harness
