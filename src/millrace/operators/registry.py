"""Every kind of operator, by the name its spec has in the manifests.

A reader needs `describe` alone and may have no PySpark, so what needs PySpark is imported late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.errors import NewerFormatError, SchemaChangedError, UsageError
from millrace.ids import OperatorName
from millrace.operators.aggregate import evolution as aggregate_evolution
from millrace.operators.aggregate import layout as aggregate_layout
from millrace.operators.aggregate.spec import KIND as AGGREGATE
from millrace.operators.as_of import evolution as as_of_evolution
from millrace.operators.as_of import layout as as_of_layout
from millrace.operators.as_of.layout import KIND as AS_OF
from millrace.operators.dedup import evolution as dedup_evolution
from millrace.operators.dedup import layout as dedup_layout
from millrace.operators.dedup.layout import KIND as DEDUP
from millrace.operators.evolution import ADVICE
from millrace.operators.join import evolution as join_evolution
from millrace.operators.join import layout as join_layout
from millrace.operators.join.layout import KIND as JOIN
from millrace.operators.lookup import evolution as lookup_evolution
from millrace.operators.lookup import layout as lookup_layout
from millrace.operators.lookup.layout import KIND as LOOKUP
from millrace.operators.operator import Operator, StateLayout
from millrace.operators.process import layout as process_layout
from millrace.operators.process.spec import KIND as PROCESS
from millrace.operators.session import evolution as session_evolution
from millrace.operators.session import layout as session_layout
from millrace.operators.session.layout import KIND as SESSION
from millrace.operators.window import evolution as window_evolution
from millrace.operators.window import layout as window_layout
from millrace.operators.window.layout import KIND as WINDOW

Spec: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What the rest of Millrace asks of a kind of operator."""

    describe: Callable[[Sequence[pa.Field], Spec], StateLayout]
    """Its tables and results, from the key and the spec alone."""
    check_change: Callable[[OperatorName, Spec, Spec], None]
    """Raises `SchemaChangedError` unless a new spec can continue state written under an old one."""
    from_spec: Callable[[OperatorName, Spec, bool], Operator]
    """An operator from its spec; the last argument is Spark's ANSI mode."""


def _check_process(name: OperatorName, old: Spec, new: Spec) -> None:
    from millrace.operators.process.evolution import check_change

    check_change(name, old, new)


def _aggregate(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.aggregate.operator import AggregateOperator

    return AggregateOperator.from_spec(name, spec, ansi=ansi)


def _window(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.window.operator import WindowOperator

    return WindowOperator.from_spec(name, spec, ansi=ansi)


def _join(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.join.operator import JoinOperator

    return JoinOperator.from_spec(name, spec, ansi=ansi)


def _as_of(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.as_of.operator import AsOfOperator

    return AsOfOperator.from_spec(name, spec, ansi=ansi)


def _lookup(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.lookup.operator import LookupOperator

    return LookupOperator.from_spec(name, spec, ansi=ansi)


def _session(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.session.operator import SessionOperator

    return SessionOperator.from_spec(name, spec, ansi=ansi)


def _dedup(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    from millrace.operators.dedup.operator import DedupOperator

    return DedupOperator.from_spec(name, spec)


def _process(name: OperatorName, spec: Spec, ansi: bool) -> Operator:
    raise UsageError(
        f"operator {name!r} runs a processor, and a location does not hold its code. Start the "
        "query with the program that defines it."
    )


KINDS = {
    AGGREGATE: Kind(aggregate_layout.describe, aggregate_evolution.check_change, _aggregate),
    WINDOW: Kind(window_layout.describe, window_evolution.check_change, _window),
    JOIN: Kind(join_layout.describe, join_evolution.check_change, _join),
    AS_OF: Kind(as_of_layout.describe, as_of_evolution.check_change, _as_of),
    LOOKUP: Kind(lookup_layout.describe, lookup_evolution.check_change, _lookup),
    SESSION: Kind(session_layout.describe, session_evolution.check_change, _session),
    DEDUP: Kind(dedup_layout.describe, dedup_evolution.check_change, _dedup),
    PROCESS: Kind(process_layout.describe, _check_process, _process),
}


def kind_of(name: OperatorName, spec: Spec) -> Kind:
    """The kind of an operator; raises if a newer Millrace wrote its spec."""
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise NewerFormatError(
            f"operator {name!r} is a {str(kind)[:80]!r}, which this Millrace does not know. "
            "Upgrade it."
        )
    return KINDS[kind]


def from_spec(name: OperatorName, spec: Spec, *, ansi: bool = True) -> Operator:
    """The operator a spec describes."""
    return kind_of(name, spec).from_spec(name, spec, ansi)


def check_change(name: OperatorName, old: Spec, new: Spec) -> None:
    """Raise `SchemaChangedError` unless `new` can continue state written under `old`."""
    if old["kind"] != new["kind"]:
        raise SchemaChangedError(
            f"operator {name!r} was {old['kind']!r} and is now {new['kind']!r}. {ADVICE}"
        )
    kind_of(name, new).check_change(name, old, new)
