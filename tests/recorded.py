"""A module for `MILLRACE_HOOKS` that writes down every request to every store."""

from __future__ import annotations

from tests.unit.recording import RecordingStore

from millrace.log.store import Store

ASKED: list[tuple[str, str]] = []
"""A verb and a path for each request since it was last cleared."""


def opened(store: Store) -> Store:
    recording = RecordingStore(store)
    recording.asked = ASKED
    return recording


def reached(point: str, epoch: int) -> None:
    pass
