"""Names for the numbers that travel through Millrace.

They are plain ints and strings at run time; the types keep an epoch from being passed where a
shard is meant. Key groups come in arrays and ranges, and have no type of their own.
"""

from typing import NewType

Epoch = NewType("Epoch", int)
"""A version of all state: 0 is empty, and each committed micro-batch makes the next one."""

Shard = NewType("Shard", int)
OperatorName = NewType("OperatorName", str)

TableName = NewType("TableName", str)
"""A table in the log: an operator has a main table and may have others beside it."""


def table_name(operator: OperatorName, table: str = "") -> TableName:
    """The name of an operator's table in the log: the main one is named like the operator."""
    return TableName(f"{operator}/{table}" if table else operator)


def parse_table_name(name: TableName) -> tuple[OperatorName, str]:
    """The operator a table belongs to, and which of its tables it is; "" is the main one."""
    operator, _, table = name.partition("/")
    return OperatorName(operator), table
