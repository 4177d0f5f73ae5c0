"""A shard's error, as the driver's user should see it.

An error in a worker reaches the driver as text inside one of Spark's exceptions. If it is one
of Millrace's own, it is raised again as what it was, so that a program can catch it by its class.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from millrace import errors

_RAISED = re.compile(r"^millrace\.errors\.(\w+): (.*)$", re.MULTILINE)


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
