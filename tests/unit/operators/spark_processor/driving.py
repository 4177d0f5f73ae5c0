"""One of Spark's processors over Millrace's tables, without Spark."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.ddl import parse_schema
from millrace.ids import OperatorName
from millrace.operators.operator import Column
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.processor import Processor
from millrace.operators.spark_processor.handle import DeclaringHandle
from millrace.operators.spark_processor.operator import Program, SparkProcessorOperator
from millrace.operators.spark_processor.row_formats import Settings
from millrace.testing import Harness


class _Nothing(Processor):
    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        pass


def declare(processor: StatefulProcessor, time_mode: str, keys: list[str]) -> DeclaringHandle:
    handle = DeclaringHandle(time_mode, keys, parse_schema)
    processor.init(handle)
    return handle


def harness(
    processor: StatefulProcessor,
    *,
    schema: str = "k string, n long",
    output: str = "k string, n long",
    time_mode: str = "none",
    event_time: str | None = None,
    in_pandas: bool = False,
) -> Harness:
    """A harness whose operator runs the processor; the key is the first column."""
    fields = [Column(f.name, f.dataType) for f in parse_schema(schema).fields]
    keys = fields[:1]
    made = Harness(
        _Nothing(), key=keys[0].name, schema=schema, output=output, event_time=event_time
    )
    handle = declare(processor, time_mode, [keys[0].name])
    dumps: Any = cloudpickle.dumps
    program = Program(
        processor=dumps(processor),
        class_name=type(processor).__name__,
        declared=handle.declared,
        deleted=handle.deleted,
        time_mode=time_mode,
        in_pandas=in_pandas,
        settings=Settings(),
        event_time_column="",
    )
    schemas = Schemas(keys, fields, parse_schema(output), event_time)
    made._use(SparkProcessorOperator(OperatorName("tested"), schemas, program))
    made.reopen()
    return made
