"""What all kinds of operators demand of a changed spec: the key stays."""

from __future__ import annotations

from typing import Any

from millrace import types
from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName

ADVICE = "Keep the old definition, or give the changed query a new checkpointLocation."


def check_keys(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise `SchemaChangedError` unless both specs have the same key."""
    if old["keys"] != new["keys"]:
        raise SchemaChangedError(
            f"the key of operator {name!r} was {_keys(old)} and is now {_keys(new)}. {ADVICE}"
        )


def _keys(spec: dict[str, Any]) -> str:
    columns = (f"{key['name']} {types.simple_string(key['type'])}" for key in spec["keys"])
    return f"({', '.join(columns)})"
