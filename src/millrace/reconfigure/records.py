"""How long epochs took, and what has become of moves: what reports are made of."""

from __future__ import annotations

from millrace import clock
from millrace.ids import Epoch, OperatorName
from millrace.reconfigure.moves import KEPT_MOVES, Latency, Move, MoveReport, Progress

SAMPLE = 20
"""Epochs before and after a move that its report speaks of."""


class Records:
    """The progress of moves, and the epochs around them."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._moves: dict[str, Progress] = {}

    def begin(self, move: Move, parallelism: dict[OperatorName, int]) -> Progress:
        """A move begins; `parallelism` is what was wanted before it."""
        progress = Progress(move, clock.stopwatch(), self._seconds[-SAMPLE:], parallelism)
        self._moves[move.id] = progress
        for old in list(self._moves)[:-KEPT_MOVES]:
            del self._moves[old]
        return progress

    def add(self, epoch: Epoch, seconds: float, current: Progress | None) -> None:
        """An epoch was committed, with a move under way or with none."""
        self._seconds.append(seconds)
        del self._seconds[:-SAMPLE]
        if current is not None:
            current.during.append(seconds)
            if current.first_epoch is None:
                current.first_epoch = epoch
            current.last_epoch = epoch
            current.seconds = clock.stopwatch() - current.started
        for past in self._moves.values():
            if past is not current and len(past.after) < SAMPLE:
                past.after.append(seconds)

    def report(self, move: Move) -> MoveReport:
        """What a move has done so far; of one that has not begun, nothing."""
        progress = self._moves.get(move.id)
        if progress is None:
            return MoveReport(
                move.kind, move.strategy, move.state, move.reason, 0, 0, 0.0, 0, None, None
            )
        return MoveReport(
            kind=move.kind,
            strategy=move.strategy,
            state=move.state,
            reason=move.reason,
            key_groups=len(progress.moved),
            bytes=progress.bytes,
            seconds=progress.seconds,
            epochs=len(progress.during),
            first_epoch=progress.first_epoch,
            last_epoch=progress.last_epoch,
            shards=progress.shards,
            before=Latency.of(progress.before),
            during=Latency.of(progress.during),
            after=Latency.of(progress.after),
        )
