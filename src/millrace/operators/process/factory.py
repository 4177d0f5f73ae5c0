"""From a user's processor to the operator that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import types as T

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.operators.operator import Column
from millrace.operators.process.initial import initial_columns
from millrace.operators.process.keyed import Schemas
from millrace.operators.process.operator import ProcessOperator
from millrace.operators.process.processor import INITIAL, Processor, check_processor, declarations
from millrace.operators.process.whole_batch import BatchProcessor, WholeBatchOperator


def make_operator(
    name: OperatorName,
    schemas: Schemas,
    processor: Processor | BatchProcessor,
    initial: T.StructType | None = None,
) -> ProcessOperator | WholeBatchOperator:
    """The operator for a processor; raises if it cannot run.

    `initial` is the schema of the initial state. It is checked against the processor's states
    before it becomes part of the schemas.
    """
    if isinstance(processor, BatchProcessor):
        if type(processor).process is BatchProcessor.process:
            raise UsageError(f"{type(processor).__name__} has no process(self, batch, state, ctx).")
        columns = _initial(initial, schemas.keys, processor, BatchProcessor)
        return WholeBatchOperator(name, replace(schemas, initial=columns), processor)
    checked = check_processor(processor)
    columns = _initial(initial, schemas.keys, checked, Processor)
    return ProcessOperator(name, replace(schemas, initial=columns), checked)


def _initial(
    schema: T.StructType | None, keys: Sequence[Column], processor: object, base: type
) -> tuple[Column, ...]:
    if schema is None:
        return ()
    is_filled = getattr(type(processor), INITIAL) is getattr(base, INITIAL)
    return initial_columns(schema, keys, declarations(processor) if is_filled else None)
