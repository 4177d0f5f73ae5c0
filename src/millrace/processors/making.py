"""From a user's processor to the operator that runs it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.operators.aggregate import Key
from millrace.processors.initial import initial_columns
from millrace.processors.operator import ProcessOperator
from millrace.processors.processor import INITIAL, Processor, check_processor, declarations
from millrace.processors.whole_batch import BatchProcessor, WholeBatchOperator


def make_operator(
    name: OperatorName,
    keys: Sequence[Key],
    fields: Sequence[Key],
    processor: Processor | BatchProcessor,
    output: T.StructType,
    event_time: str | None,
    initial: T.StructType | None = None,
) -> ProcessOperator | WholeBatchOperator:
    """The operator for a processor; raises if it cannot run. `initial` is the initial state's."""
    if isinstance(processor, BatchProcessor):
        if type(processor).process is BatchProcessor.process:
            raise UsageError(f"{type(processor).__name__} has no process(self, batch, state, ctx).")
        columns = _initial(initial, keys, processor, BatchProcessor)
        return WholeBatchOperator(name, keys, fields, processor, output, event_time, columns)
    checked = check_processor(processor)
    columns = _initial(initial, keys, checked, Processor)
    return ProcessOperator(name, keys, fields, checked, output, event_time, columns)


def _initial(
    schema: T.StructType | None, keys: Sequence[Key], processor: object, base: type
) -> tuple[Key, ...]:
    if schema is None:
        return ()
    is_filled = getattr(type(processor), INITIAL) is getattr(base, INITIAL)
    return initial_columns(schema, keys, declarations(processor) if is_filled else None)
