"""Every kind of operator, by the name its spec has in the manifests.

A reader needs `describe` alone and may have no PySpark, so what needs PySpark is imported late.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.errors import NewerFormatError, SchemaChangedError, UsageError
from millrace.fields import Fields
from millrace.ids import OperatorName
from millrace.operators import spec_check
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
from millrace.operators.graph import evolution as graph_evolution
from millrace.operators.graph import layout as graph_layout
from millrace.operators.graph.layout import ADJACENCY, COMPONENTS, NEIGHBOURS, TRIANGLES
from millrace.operators.join import evolution as join_evolution
from millrace.operators.join import layout as join_layout
from millrace.operators.join.layout import KIND as JOIN
from millrace.operators.join.layout import LEFT, RIGHT
from millrace.operators.lookup import evolution as lookup_evolution
from millrace.operators.lookup import layout as lookup_layout
from millrace.operators.lookup.layout import KIND as LOOKUP
from millrace.operators.operator import Operator, StateLayout
from millrace.operators.pattern import evolution as pattern_evolution
from millrace.operators.pattern import layout as pattern_layout
from millrace.operators.pattern.layout import KIND as PATTERN
from millrace.operators.pattern.layout import MATCHED, PARTIAL
from millrace.operators.process import layout as process_layout
from millrace.operators.process.spec import KIND as PROCESS
from millrace.operators.session import evolution as session_evolution
from millrace.operators.session import layout as session_layout
from millrace.operators.session.layout import KIND as SESSION
from millrace.operators.window import evolution as window_evolution
from millrace.operators.window import layout as window_layout
from millrace.operators.window.layout import KIND as WINDOW

Spec: TypeAlias = dict[str, Any]


class MainRows(enum.Enum):
    """What the rows of a main table are, so that a reader can show them."""

    KEYS = enum.auto()
    WINDOWS = enum.auto()
    SESSIONS = enum.auto()
    WAITING = enum.auto()
    """Rows of a stream that wait for partners."""


@dataclass(frozen=True)
class OperatorKind:
    """What the rest of Millrace asks of a kind of operator."""

    describe: Callable[[Sequence[pa.Field], Spec], StateLayout]
    """Its tables and results, from the key and the spec alone."""
    check_change: Callable[[OperatorName, Spec, Spec], None]
    """Raises `SchemaChangedError` unless a new spec can continue state written under an old one."""
    check_spec: Callable[[Fields, list[str]], list[str]]
    """Raises `MalformedError` unless a spec, of which the key is checked, has the shape that
    Millrace writes. It gets the names of the key's columns and gives those of all columns."""
    operator: tuple[str, str] | None
    """The module and the class of the operator; None if a location does not hold its code."""
    main_rows: MainRows = MainRows.KEYS
    waiting: tuple[str, ...] = ()
    """The tables of waiting rows beside the main one."""
    owned: tuple[str, ...] = ()
    """The tables beside it whose rows belong to keys, and that have columns of their own."""

    def from_spec(self, name: OperatorName, spec: Spec, ansi: bool) -> Operator:
        """An operator from its spec, in Spark's ANSI mode or not."""
        if self.operator is None:
            raise UsageError(
                f"operator {name!r} runs a processor, and a location does not hold its code. Start "
                "the query with the program that defines it."
            )
        module, cls = self.operator
        made: Operator = getattr(importlib.import_module(module), cls).from_spec(
            name, spec, ansi=ansi
        )
        return made


def _check_process(name: OperatorName, old: Spec, new: Spec) -> None:
    from millrace.operators.process.evolution import check_change

    check_change(name, old, new)


KINDS = {
    AGGREGATE: OperatorKind(
        aggregate_layout.describe,
        aggregate_evolution.check_change,
        spec_check.check_aggregate,
        ("millrace.operators.aggregate.operator", "AggregateOperator"),
    ),
    WINDOW: OperatorKind(
        window_layout.describe,
        window_evolution.check_change,
        spec_check.check_window,
        ("millrace.operators.window.operator", "WindowOperator"),
        MainRows.WINDOWS,
    ),
    JOIN: OperatorKind(
        join_layout.describe,
        join_evolution.check_change,
        spec_check.check_join,
        ("millrace.operators.join.operator", "JoinOperator"),
        MainRows.WAITING,
        waiting=(RIGHT,),
    ),
    AS_OF: OperatorKind(
        as_of_layout.describe,
        as_of_evolution.check_change,
        spec_check.check_as_of,
        ("millrace.operators.as_of.operator", "AsOfOperator"),
        waiting=(LEFT, RIGHT),
    ),
    LOOKUP: OperatorKind(
        lookup_layout.describe,
        lookup_evolution.check_change,
        spec_check.check_lookup,
        ("millrace.operators.lookup.operator", "LookupOperator"),
    ),
    SESSION: OperatorKind(
        session_layout.describe,
        session_evolution.check_change,
        spec_check.check_session,
        ("millrace.operators.session.operator", "SessionOperator"),
        MainRows.SESSIONS,
    ),
    DEDUP: OperatorKind(
        dedup_layout.describe,
        dedup_evolution.check_change,
        spec_check.check_dedup,
        ("millrace.operators.dedup.operator", "DedupOperator"),
    ),
    PATTERN: OperatorKind(
        pattern_layout.describe,
        pattern_evolution.check_change,
        spec_check.check_pattern,
        ("millrace.operators.pattern.operator", "PatternOperator"),
        MainRows.WAITING,
        owned=(PARTIAL, MATCHED),
    ),
    ADJACENCY: OperatorKind(
        graph_layout.describe_adjacency,
        graph_evolution.check_change,
        spec_check.check_adjacency,
        ("millrace.operators.graph.adjacency", "AdjacencyOperator"),
        owned=(NEIGHBOURS,),
    ),
    COMPONENTS: OperatorKind(
        graph_layout.describe_components,
        graph_evolution.check_change,
        spec_check.check_components,
        ("millrace.operators.graph.components", "ComponentsOperator"),
    ),
    TRIANGLES: OperatorKind(
        graph_layout.describe_triangles,
        graph_evolution.check_change,
        spec_check.check_triangles,
        ("millrace.operators.graph.triangles", "TrianglesOperator"),
    ),
    PROCESS: OperatorKind(process_layout.describe, _check_process, spec_check.check_process, None),
}


def operator_kind(name: OperatorName, spec: Spec) -> OperatorKind:
    """The kind of an operator; raises if a newer Millrace wrote its spec."""
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise NewerFormatError(
            f"operator {name!r} is a {str(kind)[:80]!r}, which this Millrace does not know. "
            "Upgrade it."
        )
    return KINDS[kind]


def check_spec(spec: Spec) -> None:
    """Raise unless a spec of a known kind has the shape that Millrace writes."""
    found = Fields(spec, "its spec")
    names = [spec_check.check_column(key, "a key column") for key in found.items("keys")]
    spec_check.check_distinct(KINDS[spec["kind"]].check_spec(found, names))


def from_spec(name: OperatorName, spec: Spec, *, ansi: bool = True) -> Operator:
    """The operator a spec describes."""
    return operator_kind(name, spec).from_spec(name, spec, ansi)


def check_change(name: OperatorName, old: Spec, new: Spec) -> None:
    """Raise `SchemaChangedError` unless `new` can continue state written under `old`."""
    if old["kind"] != new["kind"]:
        raise SchemaChangedError(
            f"operator {name!r} was {old['kind']!r} and is now {new['kind']!r}. {ADVICE}"
        )
    operator_kind(name, new).check_change(name, old, new)
