"""The columns every row of state has: its fingerprint, whether it was deleted, its owner's key."""

import pyarrow as pa

HI, LO, DELETED = "_hi", "_lo", "_deleted"
SYSTEM_FIELDS = (
    pa.field(HI, pa.uint64(), nullable=False),
    pa.field(LO, pa.uint64(), nullable=False),
    pa.field(DELETED, pa.bool_(), nullable=False),
)

OWNER_HI, OWNER_LO = "_owner_hi", "_owner_lo"
OWNER_FIELDS = (
    pa.field(OWNER_HI, pa.uint64(), nullable=False),
    pa.field(OWNER_LO, pa.uint64(), nullable=False),
)
"""The fingerprint of the key that a row belongs to, in tables of entries and timers."""
