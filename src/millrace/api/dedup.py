"""`drop_duplicates`: how long keys are remembered, and the step that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.api.columns import named
from millrace.api.event_time import Duration, event_time_of, parse_ttl, watermark_delay_us
from millrace.api.origin import grouping, origin
from millrace.ids import OperatorName
from millrace.operators.dedup.layout import EVENT, NEVER, PROCESSING
from millrace.operators.dedup.operator import DedupOperator
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.window.spec import columns as columns_of
from millrace.spark.dedup import DedupExchange
from millrace.spark.steps import OperatorStep

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream

WATERMARK = "watermark"
"""Keys are remembered as long as the watermark lets their duplicates come."""


def dedup_step(
    keyed: KeyedStream, ttl: Duration | None, name: OperatorName, *, delay_us: int | None = None
) -> OperatorStep:
    """The operator of `drop_duplicates(ttl=...)` and the exchange in front of it.

    Within the watermark keys are remembered for `delay_us`: by default, as long as rows may be
    late.
    """
    group = grouping(keyed)
    of = origin(group.stream)
    event_us = None
    if ttl == WATERMARK and of.time is not None:
        event_us = event_time_of(of, "drop_duplicates()")
        if delay_us is None:
            delay_us = watermark_delay_us(of.point)
        definition = DedupDefinition(group.keys, EVENT, delay_us)
    elif ttl is None or ttl == WATERMARK:
        definition = DedupDefinition(group.keys, NEVER)
    else:
        definition = DedupDefinition(group.keys, PROCESSING, parse_ttl(ttl))
    fields = columns_of(of.schema.fields)
    computed = [i for i, key in enumerate(group.keys) if key.name in group.computed]
    operator = DedupOperator(name, definition, fields, computed)
    whole = [named(field.name) for field in fields]
    exchange = DedupExchange(operator, group.columns, whole, event_us)
    return OperatorStep(operator, exchange, operator.code())
