"""Which of Spark's aggregate functions are which of Millrace's.

A call with FILTER is the same call over a value that is NULL where the filter does not hold, for
functions that skip NULLs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from millrace.plans.nodes import Call


@dataclass(frozen=True)
class Function:
    """An aggregate of Millrace's that stands for a call."""

    name: str
    """Of the function in `operators.aggregate`."""
    options: tuple[tuple[str, object], ...] = ()
    inputs: int = 1
    """How many of the call's inputs it takes; 0 counts rows."""


@dataclass(frozen=True)
class Unsupported:
    """Why there is no operator for a part of a plan, in one line."""

    reason: str


_PLAIN = {
    "Sum": "sum",
    "Average": "mean",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "Skewness": "skewness",
    "Kurtosis": "kurtosis",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
}
_SAMPLED = {
    "StddevSamp": ("stddev", True),
    "StddevPop": ("stddev", False),
    "VarianceSamp": ("variance", True),
    "VariancePop": ("variance", False),
}
_OF_TWO: dict[str, tuple[str, tuple[tuple[str, object], ...]]] = {
    "MaxBy": ("max_by", ()),
    "MinBy": ("min_by", ()),
    "CovPopulation": ("covar", (("sample", False),)),
    "CovSample": ("covar", (("sample", True),)),
    "Corr": ("corr", ()),
}
_KEEPS_NULLS = ("First", "Last")
_LG_K = (4, 21)


def function_of(call: Call) -> Function | Unsupported:
    """The aggregate that computes what a call does, or why none does."""
    if call.is_distinct:
        return Unsupported(f"{call.sql}: Spark has no DISTINCT aggregates on streams.")
    found = _function(call)
    if isinstance(found, Unsupported) or call.filter is None:
        return found
    if call.function in _KEEPS_NULLS and not dict(call.options).get("ignore_nulls"):
        return Unsupported(f"{call.sql}: FILTER with a function that does not skip NULLs.")
    # A filtered count of rows counts the rows where a constant was not made NULL.
    return Function(found.name, found.options, max(found.inputs, 1))


def _function(call: Call) -> Function | Unsupported:
    if call.function == "Count":
        return _count(call)
    if call.function in _PLAIN:
        return Function(_PLAIN[call.function])
    if call.function in _SAMPLED:
        name, sample = _SAMPLED[call.function]
        return Function(name, (("sample", sample),))
    if call.function in _OF_TWO:
        name, options = _OF_TWO[call.function]
        return Function(name, options, 2)
    if call.function in ("Min", "Max"):
        # Spark's bool_and and bool_or are the smallest and the largest boolean.
        of_booleans = {"Min": "bool_and", "Max": "bool_or"}
        is_boolean = call.types[0] == "boolean"
        return Function(of_booleans[call.function] if is_boolean else call.function.lower())
    if call.function in _KEEPS_NULLS:
        ignores = bool(dict(call.options).get("ignore_nulls"))
        return Function(call.function.lower(), (("ignore_nulls", ignores),))
    if call.function == "HyperLogLogPlusPlus":
        return Function("approx_distinct", (("lg_k", _lg_k(dict(call.options))),))
    return Unsupported(f"{call.sql}: there is no aggregate here for Spark's {call.function}.")


def _count(call: Call) -> Function | Unsupported:
    if len(call.inputs) != 1:
        return Unsupported(f"{call.sql}: count() of several columns.")
    # Spark counts rows by counting a constant.
    return Function("count", inputs=0 if call.inputs[0] == "1" else 1)


def _lg_k(options: dict[str, object]) -> int:
    """Registers for an error that is not larger than Spark's `rsd`, 0.05 by default."""
    given = options.get("relative_sd")
    deviation = float(given) if isinstance(given, float) else 0.05
    return min(max(math.ceil(2 * math.log2(1.04 / deviation)), 12), _LG_K[1])
