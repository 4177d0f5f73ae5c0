"""Where a key lives: fingerprint -> key group -> shard. Pure, but for the Spark expressions."""

from millrace.keygroups.assignment import Assignment
from millrace.keygroups.groups import (
    DEFAULT_KEY_GROUPS,
    check_key_groups,
    group_shift,
    groups_of,
)
from millrace.keygroups.ranges import format_ranges, listed_ranges, parse_ranges

__all__ = [
    "DEFAULT_KEY_GROUPS",
    "Assignment",
    "check_key_groups",
    "format_ranges",
    "group_shift",
    "groups_of",
    "listed_ranges",
    "parse_ranges",
]
