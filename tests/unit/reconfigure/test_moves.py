"""A user's handle on a move."""

from __future__ import annotations

import threading

import pytest
from tests.waiting import DEADLINE

from millrace.errors import MoveError
from millrace.reconfigure.moves import Latency, Move, MoveReport


def report(move: Move) -> MoveReport:
    return MoveReport(
        move.kind, move.strategy, move.state, move.reason, 128, 3_000_000, 1.5, 7, 3, 9,
        {"totals": (2, 4)},
        Latency.of([0.1, 0.2, 0.3]),
    )  # fmt: skip


def make(cancelled: list[str] | None = None) -> Move:
    log = [] if cancelled is None else cancelled
    return Move("17", "rescale", "live", {}, report, lambda move: log.append(move.id))


def test_waiting_for_a_move_that_gets_done() -> None:
    move = make()
    thread = threading.Timer(0.05, lambda: move.end("done"))
    thread.start()
    assert move.wait(DEADLINE) is move
    thread.join()
    assert not move.is_open
    assert move.wait() is move


def test_waiting_for_too_short_a_time_leaves_it_alone() -> None:
    move = make()
    with pytest.raises(MoveError, match=r"rescale 17 is still waiting after 0.01 seconds"):
        move.wait(0.01)
    assert move.is_open


@pytest.mark.parametrize("state", ["refused", "superseded", "cancelled"])
def test_waiting_for_a_move_that_is_not_done_says_why(state: str) -> None:
    move = make()
    move.end(state, "by request 18")
    with pytest.raises(MoveError, match=f"rescale 17 was {state}: by request 18"):
        move.wait()


def test_the_first_end_counts() -> None:
    move = make()
    move.end("done")
    move.end("cancelled", "too late")
    assert (move.state, move.reason) == ("done", "")


def test_cancelling_asks_whoever_carries_it_out() -> None:
    cancelled: list[str] = []
    make(cancelled).cancel()
    assert cancelled == ["17"]


def test_a_report_can_be_read_and_stored() -> None:
    move = make()
    move.end("done")
    text = str(move.report)
    assert "rescale (live): done" in text
    assert "totals 2 -> 4" in text
    assert "128 key groups, 3.0 MB, 7 epochs, 1.50 s" in text
    assert "before   3 epochs: p50 200 ms" in text
    assert move.report.to_json()["shards"] == {"totals": (2, 4)}
    assert repr(move) == "<Move 17 rescale live done>"


def test_latencies() -> None:
    assert Latency.of([]) == Latency()
    thousand = Latency.of([i / 1000 for i in range(1000, 0, -1)])
    assert (thousand.epochs, thousand.max) == (1000, 1.0)
    assert thousand.p50 == pytest.approx(0.5005)
    assert thousand.p99 == pytest.approx(0.991)
    assert Latency.of([2.0]) == Latency(1, 2.0, 2.0, 2.0)
