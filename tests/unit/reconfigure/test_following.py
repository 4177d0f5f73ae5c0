"""Bookkeeping of who has followed what."""

from __future__ import annotations

from millrace.ids import Epoch, OperatorName
from millrace.reconfigure.cluster import Followed
from millrace.reconfigure.following import NEVER, FollowedVersions

OP, OTHER = OperatorName("op"), OperatorName("other")


def noted() -> FollowedVersions:
    versions = FollowedVersions()
    versions.add(Followed(OP, "a", (0, 1), Epoch(3), 10))
    versions.add(Followed(OP, "b", (1, 2), Epoch(5), 10))
    return versions


def test_what_was_noted_is_known() -> None:
    versions = noted()
    assert versions.at(OP, "a", 1) == 3
    assert versions.at(OP, "b", 1) == 5
    assert versions.at(OP, "a", 2) == NEVER
    assert versions.at(OTHER, "a", 1) == NEVER


def test_the_dead_are_forgotten() -> None:
    versions = noted()
    versions.keep({"b", "c"})
    assert versions.at(OP, "a", 1) == NEVER
    assert versions.at(OP, "b", 1) == 5


def test_what_is_behind_is_asked_for_once_and_the_furthest_first() -> None:
    versions = noted()
    asked = [(OP, "b", g) for g in (0, 1, 2, 0)] + [(OP, "a", 1), (OTHER, "a", 7)]
    assert versions.behind(asked, Epoch(5)) == {"b": {OP: [0]}, "a": {OP: [1], OTHER: [7]}}
    assert versions.behind(asked, Epoch(6))["b"] == {OP: [0, 1, 2]}
    assert versions.behind([(OP, "a", 0)], Epoch(3)) == {}
