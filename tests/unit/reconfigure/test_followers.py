"""Bookkeeping of who has followed what."""

from __future__ import annotations

from millrace.ids import Epoch, OperatorName
from millrace.reconfigure.followers import NEVER, Followed, Followers

OP, OTHER = OperatorName("op"), OperatorName("other")


def noted() -> Followers:
    followers = Followers()
    followers.note(Followed(OP, "a", (0, 1), Epoch(3), 10))
    followers.note(Followed(OP, "b", (1, 2), Epoch(5), 10))
    return followers


def test_what_was_noted_is_known() -> None:
    followers = noted()
    assert followers.at(OP, "a", 1) == 3
    assert followers.at(OP, "b", 1) == 5
    assert followers.at(OP, "a", 2) == NEVER
    assert followers.at(OTHER, "a", 1) == NEVER


def test_the_dead_are_forgotten() -> None:
    followers = noted()
    followers.keep({"b", "c"})
    assert followers.at(OP, "a", 1) == NEVER
    assert followers.at(OP, "b", 1) == 5


def test_what_is_behind_is_asked_for_once_and_the_furthest_first() -> None:
    followers = noted()
    asked = [(OP, "b", g) for g in (0, 1, 2, 0)] + [(OP, "a", 1), (OTHER, "a", 7)]
    assert followers.stale(asked, Epoch(5)) == {"b": {OP: [0]}, "a": {OP: [1], OTHER: [7]}}
    assert followers.stale(asked, Epoch(6))["b"] == {OP: [0, 1, 2]}
    assert followers.stale([(OP, "a", 0)], Epoch(3)) == {}
