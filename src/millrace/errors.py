"""Every error a user can meet, each with a class of its own.

An error says what is wrong, where, and what to do next. `MillraceError` is their common base.
"""

from __future__ import annotations


class MillraceError(Exception):
    """Base of all errors Millrace raises on purpose."""


class UsageError(MillraceError):
    """The program asks for something that does not make sense."""


class UnknownColumnError(UsageError):
    """A key or an aggregate names a column the stream does not have."""


class UnknownOutputError(UsageError):
    """An operator has no such side output, or no late rows."""


class InitialStateError(UsageError):
    """An initial state that does not fit the keys or the states of its operator."""


class UnhashableKeyError(UsageError):
    """A key column has a type that Spark cannot group by."""


class UnsupportedTypeError(UsageError):
    """A column's type cannot be kept in state, or cannot be aggregated this way."""


class AggregateParameterError(UsageError):
    """A parameter of an aggregate function is out of its range."""


class DuplicateNameError(UsageError):
    """Two operators, or two columns of one operator, have the same name."""


class InvalidNameError(UsageError):
    """A name that would not be safe as part of a path, or is reserved."""


class EventTimeError(UsageError):
    """An event time that is missing, of the wrong type, or no longer there."""


class WindowError(UsageError):
    """A window that cannot be: its size, slide or offset."""


class EmissionError(UsageError):
    """An `emit` of windows where there are none: without an end no result is final."""


class JoinError(UsageError):
    """A join without an interval, with one that is empty, or of a kind that there is not."""


class PatternError(UsageError):
    """A pattern that can match nothing, or without bound, or that names what it does not have."""


class GraphError(UsageError):
    """Edges that are no edges, or an operator on graphs that cannot take what it was given."""


class NotStreamingError(UsageError):
    """A batch DataFrame was given where a streaming one is needed."""


class SinkError(UsageError):
    """The sink is unknown, is missing an option, or belongs to another query."""


class SourceError(UsageError):
    """A source cannot be reached, refuses the credentials, or is not there."""


class RealTimeError(UsageError):
    """The query cannot run in real time, or not on this cluster."""


class SqlError(UsageError):
    """A query that DuckDB cannot run, or that names what is not there."""


class NotASketchError(SqlError):
    """A function for sketches was given other bytes."""


class ReadOnlyError(SqlError):
    """A statement that would change something: state is changed by its stream alone."""


class InstallationError(MillraceError):
    """The installation cannot run Millrace."""


class UnsupportedVersionError(InstallationError):
    """A version of Spark, pandas or Java that Millrace does not run on."""


class MissingPackageError(InstallationError):
    """Something needs a package that is not installed."""


class SessionError(InstallationError):
    """The Spark session cannot be used: stopped, or a Spark Connect session."""


class LocationError(MillraceError):
    """Something is wrong with a checkpoint location."""


class NotALocationError(LocationError):
    """There is no Millrace query at this path."""


class ForeignLocationError(LocationError):
    """The path holds something else: another query, or files that are not Millrace's."""


class UnwritableLocationError(LocationError):
    """The location cannot be written to."""


class IncompatibleChangeError(LocationError):
    """The query differs from the one that wrote the location in a way state cannot follow."""


class OperatorSetChangedError(IncompatibleChangeError):
    """Operators were added, removed or renamed."""


class SchemaChangedError(IncompatibleChangeError):
    """An operator's keys, types or functions changed."""


class NewerFormatError(LocationError):
    """The location was written by a newer Millrace."""


class UnsafeFolderError(MillraceError):
    """A folder for copies of segments that others could write to."""


class UnsafeStoreError(LocationError):
    """A store that cannot create a file only if it is absent: two queries could both commit."""


class FencedError(LocationError):
    """Another driver committed to this location: this one has lost and stops."""


class UnknownEpochError(LocationError):
    """The epoch is not committed or no longer retained."""


class HistoryReplacedError(LocationError):
    """The location was restored from a backup: what was read of it is not part of its history."""


class UnknownViewError(LocationError):
    """There is no view of this name, or it has no result yet."""


class UnknownOperatorError(LocationError):
    """The location has no operator of this name."""


class UnknownStateError(LocationError):
    """The operator has no state of this name."""


class KeyColumnsError(UsageError):
    """A look-up lacks key columns, has others, or has values that are not of their types."""


class UnsupportedMirrorError(UsageError):
    """A target that Millrace does not know, or an operator whose state cannot be mirrored."""


class TokenRequiredError(UsageError):
    """A server was to be reached from other machines without a token."""


class NotAnExportError(LocationError):
    """A folder to import from is neither an export nor a location."""


class SparkStateError(LocationError):
    """The state of a Spark query does not fit the stream that should continue from it."""


class MissingOffsetsError(LocationError):
    """Spark's offsets that a state belongs to are not there, or are still being written."""


class CorruptionError(MillraceError):
    """Stored bytes are not what was written."""


class MalformedError(CorruptionError):
    """A file is whole, but what is in it is not what Millrace writes."""


class CorruptSegmentError(CorruptionError):
    """A segment's bytes do not match the checksum in its manifest, or are no rows of its table."""


class CorruptManifestError(CorruptionError):
    """A manifest's bytes do not match its own checksum, make no sense, or its chain is broken."""


class CorruptViewError(CorruptionError):
    """The stored result of a view is not what a query wrote."""


class BrokenChainError(CorruptManifestError):
    """A manifest does not continue the history that was followed up to it."""


class MissingEpochError(CorruptionError):
    """Spark has gone further than the manifests say: some of them are gone."""


class CorruptSparkLogError(CorruptionError):
    """Spark's own logs in a location are damaged, or lack a batch that the manifests have."""


class MissingFileError(CorruptionError):
    """A file that a manifest names is not there."""


class StoreError(MillraceError):
    """The store failed: permissions, space, network."""


class AlreadyExistsError(StoreError):
    """Create-if-absent found the file in place."""


class MirrorError(MillraceError):
    """A mirror cannot follow its location."""


class ForeignMirrorError(MirrorError):
    """A target holds something else: other rows, or a mirror of another state."""


class MirrorHistoryError(MirrorError):
    """A target shows an epoch that is not in the history of the location."""


class MirrorMovedError(MirrorError):
    """Another process has moved a target meanwhile."""


class MirrorTargetError(MirrorError):
    """The store of a mirror refused what was written to it."""


class MirrorUnreachableError(MirrorTargetError):
    """The store of a mirror does not answer."""


class EpochFailedError(MillraceError):
    """An epoch did not complete; nothing of it was committed."""


class ShardLostError(EpochFailedError):
    """The Python process of a real-time shard has ended, or no longer answers."""


class AggregateOverflowError(EpochFailedError):
    """A sum left the range of its type while ANSI mode is on."""


class PatternLimitError(EpochFailedError):
    """A key has more partial matches than a shard goes through, or a sum that left its range."""


class StoppingError(MillraceError):
    """A batch came while the query was being stopped; it was left for the next start."""


class AutoscaleError(UsageError):
    """Settings of autoscaling that contradict each other, the program, or the query."""


class MoveError(MillraceError):
    """A reconfiguration was not carried out, or not yet."""


class UnknownRequestError(MillraceError):
    """The location has no such request."""


class QueryStoppedError(MillraceError):
    """The query is no longer running."""


class PageError(MillraceError):
    """The live page cannot be served where it was asked for."""


class ProcessorError(EpochFailedError):
    """A processor's own code raised; the error names operator, key and row."""


class StateTypeError(EpochFailedError):
    """A value does not fit the declared type of a state or of the output."""

    position: int | None = None
    """Which of the values that were looked at together it was, if that is known."""
    key: object = None
    """The key whose state it was for, if that is known."""


class CollisionError(EpochFailedError):
    """Two entries have one fingerprint, so that only one of them could be kept."""


class StateAccessError(UsageError):
    """State was used outside `process` and `on_timer`, or is not declared."""


class UnsupportedPlanError(UsageError):
    """A Structured Streaming program has a stateful node without an operator here."""


class ForeignCheckpointError(UsageError):
    """A checkpoint location has a checkpoint of Spark's own engine."""


class TimerError(UsageError):
    """A timer was set in the past, or to something that is not a time."""
