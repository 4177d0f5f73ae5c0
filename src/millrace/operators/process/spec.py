"""A processor's spec: what a location keeps of its key and its states.

A processor written for Spark has the same spec, so both are of one kind in the log. It may also
name states that its `init` deletes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from millrace.operators.operator import Column

KIND = "process"

StateSpecs: TypeAlias = Sequence[Mapping[str, Any]]
"""What a location keeps of a processor's states, in the order in which they are declared."""


def to_json(
    keys: Sequence[Column], states: StateSpecs, deleted: Sequence[str] = ()
) -> dict[str, Any]:
    """The spec; `deleted` are states of earlier epochs that are no longer read."""
    spec = {"kind": KIND, "keys": [key.to_json() for key in keys], "states": list(states)}
    return spec | ({"deleted": list(deleted)} if deleted else {})


def state_specs(declared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The specs of declared states, in their order."""
    specs = []
    for name, declaration in declared.items():
        spec = {"name": name, **declaration.spec()}
        if "types" in spec:
            ttl = declaration.ttl_us
            spec["ttl"] = None if ttl is None else [ttl, declaration.ttl_time]
        specs.append(spec)
    return specs
