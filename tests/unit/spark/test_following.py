"""What is followed in the background gives way, and the worker itself keeps its priority."""

import os
import threading

import pytest

from millrace.spark.following import NICENESS, at_low_priority


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_function_has_a_low_priority() -> None:
    before = priority()
    assert at_low_priority(priority) == max(before, NICENESS)
    assert priority() == before


def test_a_failure_is_passed_on() -> None:
    def fail() -> None:
        raise LookupError("no such segment")

    with pytest.raises(LookupError, match="no such segment"):
        at_low_priority(fail)
