"""`transformWithState` in a plan: the processor is in the plan, pickled as for Spark's workers."""

from __future__ import annotations

import json
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.api.columns import named
from millrace.api.origin import origin
from millrace.api.spark_processors import Running, run_processor
from millrace.api.stream import Stream
from millrace.errors import UnsupportedPlanError
from millrace.plans.nodes import Attribute
from millrace.plans.rules import ProcessorPlan
from millrace.spark import jvm


def processed(
    node: Any, stream: Stream, name: str, plan: ProcessorPlan, keys: tuple[Attribute, ...]
) -> Stream:
    """What a node's processor emits over a stream with the node's own columns."""
    processor = _processor(stream, node)
    late_column = None
    if plan.time is not None:
        column = named(plan.time.name)
        is_window = plan.time.type.startswith("struct")
        late_column = plan.time.name, column.getField("end") if is_window else column
    output = T.StructType.fromJson(_schema(node))
    running = Running(
        output, plan.processing.time_mode.lower(), plan.processing.in_pandas, late_column
    )
    return run_processor(stream, [key.name for key in keys], processor, running, name)


def _schema(node: Any) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(node.schema().json())
    return schema


def _processor(stream: Stream, node: Any) -> StatefulProcessor:
    """The instance that the program gave to Spark, or rather a copy of it."""
    command = jvm.load(origin(stream).spark).PlanCuts.command(node.functionExpr())
    loads: Any = cloudpickle.loads
    found = loads(bytes(command))
    function = found[0] if isinstance(found, tuple) else found
    owner = getattr(function, "__self__", None)
    processor = getattr(owner, "_stateful_processor", None)
    if not isinstance(processor, StatefulProcessor):
        raise UnsupportedPlanError(
            "the processor is not in the plan where this version of Spark puts it."
        )
    return processor
