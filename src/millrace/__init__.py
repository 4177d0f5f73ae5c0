"""Millrace: elastic, fast, queryable state for streams that run on Spark through PySpark.

The public names are loaded when they are first used: a program that only opens a location loads
neither PySpark nor Numba. `_MODULES` says where each name is defined; type checkers read the
imports below instead, and a test compares the two and `__all__`.
"""

import sys
from typing import TYPE_CHECKING

from millrace._version import __version__

if TYPE_CHECKING:
    from millrace import graphs, testing
    from millrace.api.autoscaling import autoscale
    from millrace.api.keyed import KeyedStream
    from millrace.api.match_recognize import match_recognize
    from millrace.api.patterns import MatchedRows, matched, previous
    from millrace.api.query import Query
    from millrace.api.spark_processors import transform_with_state, transform_with_state_in_pandas
    from millrace.api.stream import Stream, stream
    from millrace.api.timed import SessionStream, WindowedStream
    from millrace.api.unchanged.programs import enable, explain, write_stream
    from millrace.api.writer import StreamWriter
    from millrace.errors import MillraceError
    from millrace.interchange.spark_checkpoint import import_spark
    from millrace.interchange.transfer import export, import_state
    from millrace.mirrors.mirror import Mirror, mirror
    from millrace.operators.aggregate.functions import (
        Aggregate,
        approx_distinct,
        avg,
        bit_and,
        bit_or,
        bit_xor,
        bool_and,
        bool_or,
        collect_list,
        collect_set,
        corr,
        count,
        count_distinct,
        covar,
        covar_pop,
        covar_samp,
        distinct_sketch,
        first,
        heavy_hitters,
        kurtosis,
        last,
        max,
        max_by,
        mean,
        min,
        min_by,
        mode,
        quantile,
        skewness,
        stddev,
        sum,
        top,
        variance,
    )
    from millrace.operators.pattern.builder import Pattern, one_of, pattern
    from millrace.operators.process.context import Context, Rows, Timer
    from millrace.operators.process.declarations import (
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
    from millrace.operators.process.durations import days, hours, milliseconds, minutes, seconds
    from millrace.operators.process.outputs import SideOutput
    from millrace.operators.process.processor import Processor
    from millrace.operators.process.shared.declarations import Broadcast, TaskState
    from millrace.operators.process.whole_batch import Batch, BatchProcessor, States
    from millrace.reading.reader import Reader
    from millrace.reading.reader import open_location as open
    from millrace.spark.session import session
else:
    _MODULES = {
        "api.autoscaling": "autoscale",
        "api.match_recognize": "match_recognize",
        "api.patterns": "MatchedRows matched previous",
        "api.query": "Query",
        "api.spark_processors": "transform_with_state transform_with_state_in_pandas",
        "api.keyed": "KeyedStream",
        "api.stream": "Stream stream",
        "api.timed": "SessionStream WindowedStream",
        "api.unchanged.programs": "enable explain write_stream",
        "api.writer": "StreamWriter",
        "errors": "MillraceError",
        "interchange.transfer": "export import_state",
        "interchange.spark_checkpoint": "import_spark",
        "mirrors.mirror": "Mirror mirror",
        "operators.aggregate.functions": (
            "Aggregate approx_distinct avg bit_and bit_or bit_xor bool_and bool_or collect_list "
            "collect_set corr count count_distinct covar covar_pop covar_samp distinct_sketch "
            "first heavy_hitters kurtosis last max max_by mean min min_by mode quantile skewness "
            "stddev sum top variance"
        ),
        "operators.pattern.builder": "Pattern one_of pattern",
        "operators.process.context": "Context Rows Timer",
        "operators.process.declarations": (
            "Aggregating EventTimeTimer List Map Pickled ProcessingTimeTimer Reducing Set Value"
        ),
        "operators.process.durations": "days hours milliseconds minutes seconds",
        "operators.process.outputs": "SideOutput",
        "operators.process.processor": "Processor",
        "operators.process.shared.declarations": "Broadcast TaskState",
        "operators.process.whole_batch": "Batch BatchProcessor States",
        "reading.reader": "Reader open=open_location",
        "spark.session": "session",
    }

    def __getattr__(name):
        import importlib

        if name in ("graphs", "testing"):
            return importlib.import_module(f"millrace.{name}")
        for module, names in _MODULES.items():
            for entry in names.split():
                public, _, own = entry.partition("=")
                if public == name:
                    found = getattr(importlib.import_module(f"millrace.{module}"), own or public)
                    globals()[name] = found
                    return found
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})


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
    "MatchedRows",
    "MillraceError",
    "Mirror",
    "Pattern",
    "Pickled",
    "ProcessingTimeTimer",
    "Processor",
    "Query",
    "Reader",
    "Reducing",
    "Rows",
    "SessionStream",
    "Set",
    "SideOutput",
    "States",
    "Stream",
    "StreamWriter",
    "TaskState",
    "Timer",
    "Value",
    "WindowedStream",
    "__version__",
    "approx_distinct",
    "autoscale",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "covar",
    "covar_pop",
    "covar_samp",
    "days",
    "distinct_sketch",
    "enable",
    "explain",
    "export",
    "first",
    "graphs",
    "heavy_hitters",
    "hours",
    "import_spark",
    "import_state",
    "kurtosis",
    "last",
    "match_recognize",
    "matched",
    "max",
    "max_by",
    "mean",
    "milliseconds",
    "min",
    "min_by",
    "minutes",
    "mirror",
    "mode",
    "one_of",
    "open",
    "pattern",
    "previous",
    "quantile",
    "seconds",
    "session",
    "skewness",
    "stddev",
    "stream",
    "sum",
    "testing",
    "top",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "variance",
    "write_stream",
]


def _register_active() -> None:
    """Make format("millrace") known to the Spark session that is running, if there is one."""
    spark = getattr(sys.modules.get("pyspark.sql"), "SparkSession", None)
    if spark is not None and spark.getActiveSession() is not None:
        from millrace.spark.tables import register_active

        register_active()


_register_active()
