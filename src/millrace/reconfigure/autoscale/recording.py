"""Autoscaling as files of a location: what it saw, and what it decided.

    scaling/seen-<milliseconds>.json        some epochs, with the settings of that time
    scaling/decision-<milliseconds>.json    one decision

Each is written once, sealed as manifests are. Old ones are forgotten. A file of observations, one
JSON object a line, is what `millrace autoscale --replay` takes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace import fields
from millrace.errors import AutoscaleError, CorruptionError, MalformedError, MissingFileError
from millrace.fields import Fields
from millrace.log.layout import SCALING
from millrace.log.manifest import FIRST_VERSION, seal, unseal
from millrace.log.store import Store
from millrace.reconfigure.autoscale.deciding import PAUSE, decide
from millrace.reconfigure.autoscale.history import Decision, History
from millrace.reconfigure.autoscale.observing import Observation
from millrace.reconfigure.autoscale.settings import Settings

KEPT_SEEN = 30
KEPT_DECISIONS = 200
SEEN, DECISION = "seen", "decision"


@dataclass(frozen=True)
class Seen:
    """Some epochs, and the settings they were judged by."""

    settings: Settings
    observations: tuple[Observation, ...]


class Records:
    """What autoscaling has left in a location."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write_seen(self, settings: Settings, observations: Sequence[Observation]) -> None:
        """Write some epochs, and forget old ones."""
        body = {
            "format": FIRST_VERSION,
            "settings": settings.to_json(),
            "observations": [o.to_json() for o in observations],
        }
        self._write(SEEN, observations[-1].at, body)
        for kind, kept in ((SEEN, KEPT_SEEN), (DECISION, KEPT_DECISIONS)):
            for path in self._paths(kind)[:-kept]:
                self._store.delete(path)

    def write_decision(self, decision: Decision) -> None:
        self._write(DECISION, decision.at, {"format": FIRST_VERSION, **decision.to_json()})

    def _write(self, kind: str, at: float, body: dict[str, object]) -> None:
        self._store.put(f"{SCALING}/{kind}-{round(at * 1000):013d}.json", seal(body)[0])

    def decision_paths(self) -> list[str]:
        """The files of decisions, oldest first."""
        return self._paths(DECISION)

    def read_decision(self, path: str) -> Decision | None:
        """A decision; None if it is forgotten by now."""
        found = self._read(path)
        if found is None:
            return None
        with _malformed(f"{self._store.url}/{path}"):
            return Decision.from_json(found)

    def decisions(self) -> list[Decision]:
        """Those that are remembered, oldest first."""
        found = (self.read_decision(path) for path in self.decision_paths())
        return [decision for decision in found if decision is not None]

    def seen(self) -> list[Seen]:
        """What is remembered of epochs, oldest first."""
        result = []
        for path in self._paths(SEEN):
            found = self._read(path)
            if found is None:
                continue
            with _malformed(f"{self._store.url}/{path}"):
                read = Fields(found, "the file")
                settings = Settings.from_json(read["settings"])
                epochs = tuple(Observation.from_json(o) for o in read.items("observations"))
            result.append(Seen(settings, epochs))
        return result

    def _paths(self, kind: str) -> list[str]:
        return sorted(p for p in self._store.list(SCALING) if p.startswith(f"{SCALING}/{kind}-"))

    def _read(self, path: str) -> dict[str, object] | None:
        try:
            return unseal(self._store.read(path), f"{self._store.url}/{path}")[0]
        except MissingFileError:
            return None


@contextlib.contextmanager
def _malformed(where: str) -> Iterator[None]:
    """Names the file in which something is not what Millrace writes."""
    try:
        yield
    except (MalformedError, AutoscaleError) as error:
        raise CorruptionError(
            f"{where} is malformed: {error}. Delete it: it is a record, and nothing depends on it."
        ) from error


def lines_of(observations: Iterable[Observation]) -> Iterator[str]:
    """Observations as lines of a file that can be replayed."""
    for observation in observations:
        yield json.dumps(observation.to_json(), separators=(",", ":"))


def read_lines(lines: Iterable[str], where: str) -> list[Observation]:
    """The observations of a file, in order."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Observation.from_json(fields.parse(line.encode())))
        except MalformedError as error:
            raise AutoscaleError(
                f"line {number} of {where} is no observation: {error}. `millrace autoscale "
                "LOCATION --record FILE` writes such a file."
            ) from error
    if not found:
        raise AutoscaleError(f"{where} has no observations, so there is nothing to replay.")
    return found


def replay(observations: Iterable[Observation], settings: Settings) -> Iterator[Decision]:
    """What would have been decided after each epoch, had nobody acted on it.

    The epochs stay as they were recorded, so a decision says what was wanted then; whether the next
    epochs would have been better is the simulator's question.
    """
    history, last = History(), float("-inf")
    for observation in observations:
        history = history.add(observation)
        if observation.at - last >= PAUSE:
            last = observation.at
            yield decide(settings, history)
