"""Names for the numbers that travel through Millrace.

They are plain ints and strings at run time; the types keep an epoch from being passed where a
key group is meant.
"""

from typing import NewType

Epoch = NewType("Epoch", int)
"""A version of all state: 0 is empty, and each committed micro-batch makes the next one."""

KeyGroup = NewType("KeyGroup", int)
Shard = NewType("Shard", int)
OperatorName = NewType("OperatorName", str)
