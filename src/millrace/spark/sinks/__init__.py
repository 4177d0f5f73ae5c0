"""Where an epoch's output goes: a module per kind of sink."""

from millrace.spark.sinks.contract import Sink, run
from millrace.spark.sinks.files import Files
from millrace.spark.sinks.kafka import Kafka
from millrace.spark.sinks.marked import MarkedSink
from millrace.spark.sinks.memory import BatchFunction, Console, ForEachBatch, Memory, Noop
from millrace.spark.sinks.names import check_targets, make_sink

__all__ = [
    "BatchFunction",
    "Console",
    "Files",
    "ForEachBatch",
    "Kafka",
    "MarkedSink",
    "Memory",
    "Noop",
    "Sink",
    "check_targets",
    "make_sink",
    "run",
]
