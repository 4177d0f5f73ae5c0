"""What a location holds, by the first part of its files' paths.

    LOCATION/
      millrace.json              who wrote this: query id, key groups, format
      manifests/                 one per retained epoch: what it committed
      segments/<operator>/       the state, one file per shard and epoch
      spark/                     Spark's own checkpoint: offsets, commits, sources
      requests/                  what was asked of the query, and how it ended
      leases/                    epochs that readers hold
      views/<name>/              the last results of a view
      sinks/                     what sinks must find again, one file for each that needs it
      scaling/                   what autoscaling has seen and decided
      collected/                 which epochs were collected, roughly

Anything else is not Millrace's.
"""

from __future__ import annotations

IDENTITY = "millrace.json"
MANIFESTS = "manifests"
SEGMENTS = "segments"
SPARK = "spark"
REQUESTS = "requests"
LEASES = "leases"
VIEWS = "views"
SINKS = "sinks"
SCALING = "scaling"
COLLECTED = "collected"


def segment_epoch(path: str) -> int:
    """The epoch in a segment's file name; 0 for files that are not segments."""
    stem = path.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(stem) if stem.isascii() and stem.isdigit() else 0
