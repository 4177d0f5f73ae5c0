"""What the options and inputs of aggregates in a manifest must be."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import MalformedError
from millrace.operators.registry import check_spec

PAIR = {
    "type": "struct",
    "fields": [{"name": n, "type": "long", "nullable": True} for n in ("first", "second")],
}
GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "first": ("long", {"ignore_nulls": True}),
    "covar": (PAIR, {"sample": True}),
    "max_by": (PAIR, {}),
    "approx_distinct": ("string", {"lg_k": 12}),
    "distinct_sketch": ("string", {"lg_k": 26}),
    "quantile": ("double", {"ranks": [0, 0.5, 1], "single": False, "accuracy": 200}),
    "heavy_hitters": ("string", {"k": 10, "track": 100}),
    "top": (PAIR, {"k": 10}),
}


def spec(function: str, data_type: Any, options: dict[str, Any]) -> dict[str, Any]:
    aggregate = {"name": "x", "function": function, "type": data_type, "options": options}
    return {"kind": "aggregate", "keys": [], "aggregates": [{**aggregate, "of": "v"}]}


@pytest.mark.parametrize("function", GOOD)
def test_what_millrace_writes_passes(function: str) -> None:
    check_spec(spec(function, *GOOD[function]))


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        ("top", {"k": 0}),
        ("top", {"k": 10_001}),
        ("first", {"ignore_nulls": 1}),
        ("covar", {"sample": None}),
        ("approx_distinct", {"lg_k": 40}),
        ("distinct_sketch", {"lg_k": "12"}),
        ("quantile", {"ranks": [2]}),
        ("quantile", {"ranks": 0.5}),
        ("quantile", {"accuracy": -1}),
        ("heavy_hitters", {"track": 10**12}),
    ],
)
def test_options_out_of_range_are_refused(function: str, changed: dict[str, Any]) -> None:
    data_type, options = GOOD[function]
    with pytest.raises(MalformedError, match=function):
        check_spec(spec(function, data_type, options | changed))


def test_options_that_are_missing_are_refused() -> None:
    for function, (data_type, options) in GOOD.items():
        for name in options:
            less = {n: v for n, v in options.items() if n != name}
            with pytest.raises(MalformedError, match=f"{function}.*lacks its option '{name}'"):
                check_spec(spec(function, data_type, less))


@pytest.mark.parametrize("data_type", ["long", {**PAIR, "fields": PAIR["fields"][:1]}])
def test_a_function_of_two_columns_needs_both(data_type: Any) -> None:
    with pytest.raises(MalformedError):
        check_spec(spec("max_by", data_type, {}))


COLUMNS: dict[str, Any] = {
    "keys": [{"name": "k", "type": "string"}],
    "left": [{"name": "x", "type": "long"}],
    "right": [{"name": "y", "type": "long"}],
}
TWO_STREAMS: dict[str, dict[str, Any]] = {
    "join": {"within": {"lower": -5, "upper": 0}, "how": "semi", "time": "left"},
    "as_of": {"tolerance": None},
    "lookup": {"how": "inner"},
}


@pytest.mark.parametrize("kind", TWO_STREAMS)
def test_operators_over_two_streams_pass(kind: str) -> None:
    check_spec({"kind": kind, **COLUMNS, **TWO_STREAMS[kind]})


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("join", {"how": "cross"}),
        ("join", {"how": None}),
        ("join", {"time": "both"}),
        ("join", {"within": {"lower": 1, "upper": 0}}),
        ("join", {"within": {"lower": 0}}),
        ("join", {"within": {"lower": -(10**30), "upper": 0}}),
        ("join", {"left": [{"name": "k", "type": "long"}]}),
        ("join", {"right": [{"name": "join.event", "type": "long"}]}),
        ("join", {"right": None}),
        ("as_of", {"tolerance": -1}),
        ("as_of", {"tolerance": "5"}),
        ("as_of", {"left": [{"name": "x"}]}),
        ("lookup", {"how": "full"}),
        ("lookup", {"right": [{"name": "y", "type": "long"}, {"name": "y", "type": "long"}]}),
    ],
)
def test_malformed_operators_over_two_streams_are_refused(
    kind: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(MalformedError):
        check_spec({"kind": kind, **COLUMNS, **TWO_STREAMS[kind], **changed})


@pytest.mark.parametrize("kind", TWO_STREAMS)
def test_what_is_missing_of_two_streams_is_refused(kind: str) -> None:
    whole = {"kind": kind, **COLUMNS, **TWO_STREAMS[kind]}
    for name in whole.keys() - {"kind"}:
        with pytest.raises(MalformedError):
            check_spec({n: v for n, v in whole.items() if n != name})
