"""Millrace: elastic, fast, queryable state for streams that run on Spark through PySpark."""

from millrace import testing
from millrace._version import __version__
from millrace.api import KeyedStream, Query, Sinked, Stream, stream
from millrace.compat.api import transform_with_state, transform_with_state_in_pandas
from millrace.errors import MillraceError
from millrace.interchange.moving import export
from millrace.interchange.moving import move_in as import_state
from millrace.interchange.moving_in import import_spark
from millrace.operators.functions import (
    Aggregate,
    count,
    first,
    last,
    max,
    mean,
    min,
    stddev,
    sum,
    variance,
)
from millrace.processors.batch import Context, Rows, Timer
from millrace.processors.declarations import (
    Aggregating,
    EventTimeTimer,
    List,
    Map,
    Pickled,
    ProcessingTimeTimer,
    Reducing,
    Set,
    Value,
)
from millrace.processors.durations import days, hours, milliseconds, minutes, seconds
from millrace.processors.outputs import SideOutput
from millrace.processors.processor import Processor
from millrace.processors.shared.declarations import Broadcast, TaskState
from millrace.processors.whole_batch import Batch, BatchProcessor, States
from millrace.reading import Reader
from millrace.reading import open_location as open
from millrace.spark.session import session
from millrace.spark.tables import register_active

__all__ = [
    "Aggregate",
    "Aggregating",
    "Batch",
    "BatchProcessor",
    "Broadcast",
    "Context",
    "EventTimeTimer",
    "KeyedStream",
    "List",
    "Map",
    "MillraceError",
    "Pickled",
    "ProcessingTimeTimer",
    "Processor",
    "Query",
    "Reader",
    "Reducing",
    "Rows",
    "Set",
    "SideOutput",
    "Sinked",
    "States",
    "Stream",
    "TaskState",
    "Timer",
    "Value",
    "__version__",
    "count",
    "days",
    "export",
    "first",
    "hours",
    "import_spark",
    "import_state",
    "last",
    "max",
    "mean",
    "milliseconds",
    "min",
    "minutes",
    "open",
    "seconds",
    "session",
    "stddev",
    "stream",
    "sum",
    "testing",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "variance",
]

# A session that is running already knows format("millrace") from now on.
register_active()
