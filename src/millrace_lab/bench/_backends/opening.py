"""New owners of Millrace's state: replicas opened from the log, until they can serve."""

from __future__ import annotations

import numpy as np

from millrace.arrays import Int64Array
from millrace.ids import Shard
from millrace.keygroups import DEFAULT_KEY_GROUPS, Assignment
from millrace.state.replica import Replica
from millrace_lab.bench._backends import LIVE, MERGED, RESTORED
from millrace_lab.bench._state_layer import OperatorLayer


class FollowsTheLog:
    """What both of Millrace's backends have: new states are replicas that are opened."""

    def __init__(self, layer: OperatorLayer) -> None:
        self._followed = layer
        self._opened: dict[str, dict[str, Replica]] = {}
        self._parts: list[dict[str, Replica]] = []

    def checkpoint(self) -> int:
        return self._followed.keep()[1]

    def restore(self) -> None:
        self._opened[RESTORED] = open_whole(self._followed)

    def repartition(self, parts: int) -> None:
        self._parts = open_parts(self._followed, parts)

    def merge(self) -> None:
        self._opened[MERGED] = open_whole(self._followed)

    def replicas(self, state: str) -> dict[str, Replica]:
        """Those of a state that totals are asked of."""
        return self._followed.replicas if state == LIVE else self._opened[state]

    def close(self) -> None:
        self._opened.clear()
        self._parts.clear()


def open_whole(layer: OperatorLayer) -> dict[str, Replica]:
    """One owner of everything."""
    return _open(layer, layer.groups)


def open_parts(layer: OperatorLayer, parts: int) -> list[dict[str, Replica]]:
    """Some owners of a range of key groups each."""
    assignment = Assignment.even(DEFAULT_KEY_GROUPS, parts)
    return [_open(layer, assignment.groups_of(Shard(part))) for part in range(parts)]


def _open(layer: OperatorLayer, groups: Int64Array) -> dict[str, Replica]:
    replicas = layer.open(groups)
    # The first fingerprint of every key group: its base is mapped, verified and searched.
    words = groups.astype(np.uint64) << np.uint64(64 - DEFAULT_KEY_GROUPS.bit_length() + 1)
    for replica in replicas.values():
        replica.find(words, words)
    return replicas
