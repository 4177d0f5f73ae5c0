"""Errors of Spark's, as the driver's user should see them.

An error in a worker reaches the driver as text inside one of Spark's exceptions. If it is one
of Millrace's own, it is raised again as what it was, so that a program can catch it by its class.
An error at Spark's logs may be that of a driver that has lost its location to another one.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from millrace import errors
from millrace.errors import FencedError
from millrace.log import Journal

_RAISED = re.compile(r"^millrace\.errors\.(\w+): (.*)$", re.MULTILINE)

_TAKEN = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's name for the error that a batch is in its log already."""


def unwrapped(failure: BaseException, others: str = "") -> BaseException:
    """The error of Millrace's that a worker raised, if there is one in it; else the failure.

    `others` are failures that this one may be a consequence of.
    """
    if not isinstance(failure, PySparkException):
        return failure
    raised = _RAISED.findall(f"{failure}\n{others}")
    if not raised:
        return failure
    # A traceback ends with the error that matters; those before it are its causes.
    name, message = raised[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.MillraceError)):
        return failure
    error = kind(message.strip())
    error.__cause__ = failure
    return error


def fenced(error: BaseException, journal: Journal, run_id: str) -> BaseException:
    """An error of Spark's; if it tells that another driver was at Spark's logs first, who won."""
    if _TAKEN not in str(error):
        return error
    head = journal.head()
    winner = journal.read(head)[0].run if head else run_id
    others = f"run {winner} has committed" if winner != run_id else "another run has begun"
    after = head if winner != run_id else head + 1
    lost = FencedError(
        f"{others} epoch {after} of {journal.store.url}, and its batch is in Spark's log; this "
        f"run, {run_id}, has lost the location and stops. Nothing is lost: only one query may run "
        "on a location, so stop one of the two."
    )
    lost.__cause__ = error
    return lost
