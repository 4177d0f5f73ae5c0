"""The state log: segments, manifests, and the store they live in."""

from millrace.log.journal import Journal
from millrace.log.manifest import Manifest, OperatorCommit
from millrace.log.segment import Section, SectionData, Segment, SegmentEntry
from millrace.log.store import Store, open_store
from millrace.log.trail import OperatorLog, Piece, Trail

__all__ = [
    "Journal",
    "Manifest",
    "OperatorCommit",
    "OperatorLog",
    "Piece",
    "Section",
    "SectionData",
    "Segment",
    "SegmentEntry",
    "Store",
    "Trail",
    "open_store",
]
