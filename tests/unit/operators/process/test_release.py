"""An epoch's objects go with it: nothing that was loaded waits for the garbage collector."""

from __future__ import annotations

import gc
from typing import Any

import millrace as mr
from millrace.operators.process.handles import Elements, Entries
from millrace.testing import Harness


class Everything(mr.Processor):
    value = mr.Value("long", default=0)
    elements = mr.List("long", ttl="1 hour")
    entries = mr.Map("long", "long")
    members = mr.Set("string")
    alarm = mr.EventTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.value.set(self.value.get() + 1)
        self.elements.append(1)
        self.entries[1] = 2
        self.members.add("x")
        self.alarm.set(ctx.processing_time)
        yield (len(self.elements) + len(self.entries) + len(self.members),)

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        return None


def test_nothing_of_an_epoch_is_left_to_the_garbage_collector() -> None:
    harness = Harness(Everything(), key="k", schema="k long", output="n long")
    harness.send([{"k": 1}])
    gc.collect()
    gc.disable()
    try:
        assert harness.send([{"k": k} for k in range(5)]) != []
        left = [o for o in gc.get_objects() if isinstance(o, Entries | Elements)]
    finally:
        gc.enable()
    assert left == []


def test_the_garbage_collector_is_as_it_was_after_an_epoch() -> None:
    harness = Harness(Everything(), key="k", schema="k long", output="n long")
    before = gc.get_threshold()
    gc.set_threshold(1234, 5, 6)
    try:
        harness.send([{"k": 1}])
        assert gc.get_threshold() == (1234, 5, 6)
    finally:
        gc.set_threshold(*before)
