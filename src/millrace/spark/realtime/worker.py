"""The process of a shard: it stays between epochs, and applies rows as they come.

For each epoch the shard is opened at its version, applied to once per frame of rows, and sealed
when no more come. Answers are sent after each frame. What a shard does is in
`millrace.epoch.shard`; micro-batches run the same code in one step.

Invariant: the report is sent after the segments are durable. Whatever goes wrong, the process says
so and ends: the next attempt of the epoch gets a new one, and replicas that follow the log.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from millrace import clock, hooks, types
from millrace.epoch.report import ShardReport
from millrace.epoch.rows import decode
from millrace.epoch.shard import OpenShard, ShardTask, open_shard
from millrace.errors import EpochFailedError
from millrace.ids import Shard
from millrace.operators import Change, Operator
from millrace.operators.operator import runs_every_epoch
from millrace.spark.outputs import outgoing, sent_schema
from millrace.spark.realtime import frames
from millrace.spark.shard import decode_times
from millrace.state.cache import ReplicaCache, process_cache


@dataclass(frozen=True)
class ResidentTask:
    """What the processes of an operator's shards need to know, in all epochs."""

    shards: ShardTask
    outputs: tuple[str, ...]
    """Those that are read."""

    def encode(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def decode(data: bytes) -> ResidentTask:
        # From the driver of the query, as all code that Spark sends to its workers.
        found = pickle.loads(data)
        assert isinstance(found, ResidentTask)
        return found


class ResidentShard:
    """One epoch of a shard, frame by frame."""

    def __init__(self, opening: frames.Opening, cache: ReplicaCache = process_cache) -> None:
        started = clock.stopwatch()
        task = ResidentTask.decode(opening.task)
        self._outputs = task.outputs
        self._operator: Operator = task.shards.load()
        self._schema = pa.ipc.read_schema(pa.py_buffer(opening.schema))
        self._sent = types.arrow_schema(sent_schema(self._operator, task.outputs))
        self._executor = f"executor-{opening.executor}"
        self.times = decode_times(json.loads(opening.moment))
        moment = self.times.moment(task.shards.assignment, task.shards.operator)
        self._shard: OpenShard = open_shard(
            task.shards, self._operator, Shard(opening.shard), moment, cache
        )
        for replica in self._shard.replicas.values():
            # What was in use is going to be: the first rows of an epoch need not wait for it.
            replica.touch(replica.warm())
        self._seconds = {"follow": clock.stopwatch() - started, "apply": 0.0}
        self.steps = 0

    def apply(self, data: bytes) -> list[pa.RecordBatch]:
        """Apply a frame of rows; the answers."""
        started = clock.stopwatch()
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
        change = self._shard.apply(decode(batch), more=True)
        self.steps += 1
        answers = self._answers(change)
        self._seconds["apply"] += clock.stopwatch() - started
        return answers

    def finish(self) -> list[pa.RecordBatch]:
        """What the end of the epoch brings: windows that are over, timers that are due."""
        if not runs_every_epoch(self._operator):
            return []
        return self._answers(self._shard.apply(None))

    def seal(self) -> ShardReport:
        """Write the segments."""
        hooks.reach(hooks.BEFORE_SEGMENT, self.times.epoch)
        started = clock.stopwatch()
        report = self._shard.seal(self._executor, self._seconds)
        self._seconds["segment"] = clock.stopwatch() - started
        report.counters["steps"] = self.steps
        hooks.reach(hooks.AFTER_SEGMENT, self.times.epoch)
        return report

    def _answers(self, change: Change) -> list[pa.RecordBatch]:
        sent = outgoing(self._operator, change, self._outputs)
        return [_conformed(batch, self._sent) for batch in sent if batch.num_rows]


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The task reads answers by a schema that it knows, so their types must be exactly that."""
    if batch.schema.equals(schema) or batch.schema.types == schema.types:
        return batch
    columns = [types.conform(c, f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def main(infile: BinaryIO, outfile: BinaryIO) -> None:
    """Serve epochs until the task's end of the socket is closed."""
    while True:
        opening = frames.read(infile)
        if opening is None:
            return
        try:
            _serve(_expect_opening(opening), infile, outfile)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            # The task is gone, and with it whoever could be told.
            sys.exit(1)
        except BaseException:
            frames.write(outfile, frames.FAILED, traceback.format_exc().encode())
            outfile.flush()
            sys.exit(1)


def _serve(opening: frames.Opening, infile: BinaryIO, outfile: BinaryIO) -> None:
    shard = ResidentShard(opening)
    frames.write(outfile, frames.OPENED, str(os.getpid()).encode())
    outfile.flush()
    while True:
        frame = frames.read(infile)
        if not isinstance(frame, frames.Frame):
            raise EOFError("the task has left its shard")
        if frame.kind == frames.END:
            break
        hooks.reach(hooks.AFTER_INPUT, shard.times.epoch)
        _send(outfile, shard.apply(frame.data))
        frames.write(outfile, frames.DONE)
        outfile.flush()
    _send(outfile, shard.finish())
    outfile.flush()
    frames.write(outfile, frames.REPORT, pickle.dumps(shard.seal()))
    outfile.flush()


def _send(outfile: BinaryIO, answers: Sequence[pa.RecordBatch]) -> None:
    for batch in answers:
        frames.write(outfile, frames.ANSWER, memoryview(batch.serialize()))


def _expect_opening(found: frames.Opening | frames.Frame) -> frames.Opening:
    if isinstance(found, frames.Frame):
        raise EpochFailedError(
            f"a shard was sent a frame of kind {found.kind} before its epoch. This is a bug in "
            "Millrace; nothing was committed."
        )
    return found
