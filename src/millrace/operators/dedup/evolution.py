"""Which changes of a deduplication a location can follow.

How long keys are remembered may change: that concerns keys to come. By which clock may not, because
state has times of the old one.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.dedup.layout import EVENT, NEVER, PROCESSING
from millrace.operators.evolution import ADVICE, check_keys

_WORDS = {EVENT: "within the watermark", PROCESSING: "for a time (ttl=)", NEVER: "forever"}


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    if old["time"] != new["time"]:
        raise SchemaChangedError(
            f"operator {name!r} remembered keys {_WORDS[old['time']]} and now does so "
            f"{_WORDS[new['time']]}. {ADVICE}"
        )
