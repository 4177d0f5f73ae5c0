"""Operators: stateful steps, as pure functions from (replica, rows) to (changed rows, output)."""

from __future__ import annotations

from typing import Any

from millrace.errors import NewerFormatError
from millrace.ids import OperatorName
from millrace.operators import aggregate
from millrace.operators.aggregate import AggregateOperator
from millrace.operators.operator import Change, Operator


def from_spec(name: OperatorName, spec: dict[str, Any], *, ansi: bool = True) -> Operator:
    """The operator a spec describes."""
    if spec["kind"] == aggregate.KIND:
        return AggregateOperator.from_spec(name, spec, ansi=ansi)
    raise NewerFormatError(
        f"operator {name!r} is a {spec['kind']!r}, which this Millrace does not know. Upgrade it."
    )


__all__ = ["AggregateOperator", "Change", "Operator", "from_spec"]
