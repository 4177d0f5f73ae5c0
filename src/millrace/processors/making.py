"""From a user's processor to the operator that runs it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.processors.operator import ProcessOperator
from millrace.processors.processor import Processor, check_processor
from millrace.processors.whole_batch import BatchProcessor, WholeBatchOperator


def make_operator(
    name: OperatorName,
    keys: Sequence[Key],
    fields: Sequence[Key],
    processor: Processor | BatchProcessor,
    output: T.StructType,
    event_time: str | None,
) -> ProcessOperator | WholeBatchOperator:
    """The operator for a processor; raises if it cannot run."""
    if isinstance(processor, BatchProcessor):
        if type(processor).process is BatchProcessor.process:
            raise UsageError(f"{type(processor).__name__} has no process(self, batch, state, ctx).")
        return WholeBatchOperator(name, keys, fields, processor, output, event_time)
    checked = check_processor(processor)
    return ProcessOperator(name, keys, fields, checked, output, event_time)
