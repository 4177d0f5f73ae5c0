"""How a stop of Spark's query reaches a batch: Spark interrupts the thread that runs it.

Invariant: what a batch raises because it was interrupted is known to Spark as an interruption, and
does not count as the failure of the query.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from millrace.errors import StoppingError
from millrace.spark.jvm import java_class

STOP_MS = 10_000
"""How long a batch that comes while the query is being stopped waits for the stop."""

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def await_stop(spark: SparkSession) -> None:
    """Sleep on the stream's own thread until the stop interrupts it."""
    thread = java_class(spark, "java.lang.Thread")
    try:
        thread.sleep(STOP_MS)
    except Py4JJavaError as error:
        raise interrupted() if is_interruption(error) else error from None


def is_interruption(error: BaseException) -> bool:
    """Whether an error says that Spark has interrupted the thread."""
    return any(name in str(error) for name in INTERRUPTIONS)


def interrupted() -> StoppingError:
    """What Spark takes for the interruption of a query that is being stopped.

    It looks for these words in the text of the error. The error that py4j raises has them too, but
    with a Java stack trace behind them, on which Spark's search runs out of stack.
    """
    return StoppingError(
        "the query is being stopped; this batch runs after its next start "
        f"(py4j.protocol.Py4JJavaError: An error occurred while calling it: {INTERRUPTIONS[0]})"
    )
