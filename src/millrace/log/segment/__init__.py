"""Segments: immutable Arrow IPC files, one per shard and epoch.

A segment holds *sections*. A section is a set of rows sorted by fingerprint, together with the
range of epochs it stands for:

* a **delta** (epoch - 1, epoch]: the rows this epoch changed;
* a **run** (first, last]: several deltas of these key groups, merged into one;
* a **base** (0, last]: all rows of some key groups.

A section's rows are cut into *pages* (record batches) at key-group boundaries, so a key group can
be read without its neighbours. The file's schema metadata says which rows belong to which key
group. The checksums of the pages, and of everything that is not a page, are in the segment's
*entry* in the manifest: what the manifest does not name does not exist, and what it names can be
verified page by page, when a page is first touched, and also column by column.

Any Arrow reader reads a segment; nothing Millrace-specific is needed but to know which rows count.
"""

from millrace.log.segment.encoding import SectionData, encode_segment, segment_path
from millrace.log.segment.entry import SEGMENT_VERSION, Section, SegmentEntry
from millrace.log.segment.fields import (
    DELETED,
    HI,
    LO,
    OWNER_FIELDS,
    OWNER_HI,
    OWNER_LO,
    SYSTEM_FIELDS,
)
from millrace.log.segment.group_index import GroupIndex
from millrace.log.segment.integrity import page_is_whole, with_parts
from millrace.log.segment.reading import Segment, open_segment

__all__ = [
    "DELETED",
    "HI",
    "LO",
    "OWNER_FIELDS",
    "OWNER_HI",
    "OWNER_LO",
    "SEGMENT_VERSION",
    "SYSTEM_FIELDS",
    "GroupIndex",
    "Section",
    "SectionData",
    "Segment",
    "SegmentEntry",
    "encode_segment",
    "open_segment",
    "page_is_whole",
    "segment_path",
    "with_parts",
]
