"""The journal of a location: its identity, its manifests, and how to commit to it.

    millrace.json                who wrote this: query id, key groups, format
    manifests/000000000012.json  what epoch 12 committed

Invariant: an epoch is committed exactly when its manifest exists. `commit` is the only writer of
manifests, and creating one that exists means another driver was faster: `FencedError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace import clock
from millrace.errors import (
    AlreadyExistsError,
    CorruptManifestError,
    FencedError,
    ForeignLocationError,
    MissingFileError,
    NotALocationError,
    UnknownEpochError,
)
from millrace.fields import Fields
from millrace.ids import Epoch, OperatorName, TableName
from millrace.keygroups import format_ranges
from millrace.keygroups.scheme import CHAINED, Scheme
from millrace.log import manifest as manifests
from millrace.log.layout import IDENTITY, MANIFESTS
from millrace.log.manifest import SEAL_BYTES, Manifest, OperatorCommit
from millrace.log.marks import is_marked
from millrace.log.store import Store
from millrace.log.trail import OperatorLog, Trail

FULL_EVERY = 32
"""A full manifest is written at least every this many epochs."""
LAG = 64
"""Of this many of the last epochs, a list may leave some out."""


@dataclass(frozen=True)
class Identity:
    """Who a location belongs to. Written once."""

    query: str
    key_groups: int
    created_ms: int
    scheme: Scheme
    """How the fingerprints of its keys are computed."""

    @property
    def format(self) -> int:
        """The format of its manifests: only the fingerprints differ."""
        return self.scheme.version

    @staticmethod
    def from_json(body: dict[str, Any]) -> Identity:
        fields = Fields(body, "the identity")
        key_groups = manifests.key_groups_of(fields)
        scheme = CHAINED
        if fields.integer("format", 1) > 1:
            scheme = Scheme.from_json(fields.members("fingerprints"))
        return Identity(fields.text("query"), key_groups, fields.integer("created"), scheme)


class Journal:
    """The manifests of one location."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self.store = store
        self.identity = identity

    @staticmethod
    def open(store: Store) -> Journal:
        """The journal of an existing location."""
        try:
            data = store.read(IDENTITY)
        except MissingFileError as error:
            raise NotALocationError(
                f"{store.url} is not a Millrace location: it has no {IDENTITY}. Check the path; "
                "a location is what was given to start() as checkpointLocation."
            ) from error
        where = f"{store.url}/{IDENTITY}"
        body, _ = manifests.unseal(data, where)
        with manifests.malformed(where):
            return Journal(store, Identity.from_json(body))

    @staticmethod
    def create(store: Store, key_groups: int, scheme: Scheme | None = None) -> Journal:
        """A new location; refuses one that holds other files.

        Only state that comes from elsewhere with its fingerprints brings a scheme along.
        """
        strangers = [path for path in store.list("") if not path.endswith(".tmp")]
        if strangers and store.size(IDENTITY) is None:
            raise ForeignLocationError(
                f"{store.url} holds files that are not Millrace's (such as {strangers[0]}). Choose "
                "an empty directory as checkpointLocation; a Spark checkpoint cannot be used as "
                "a location."
            )
        identity = Identity(clock.fresh_id(), key_groups, clock.now_ms(), scheme or Scheme.fresh())
        body: dict[str, Any] = {
            "format": identity.format,
            "query": identity.query,
            "keyGroups": identity.key_groups,
            "created": identity.created_ms,
        }
        if identity.scheme != CHAINED:
            body["fingerprints"] = identity.scheme.to_json()
        try:
            store.create(IDENTITY, manifests.seal(body)[0])
        except AlreadyExistsError:
            return Journal.open(store)
        return Journal(store, identity)

    def read(self, epoch: Epoch) -> tuple[Manifest, str]:
        """One manifest and its checksum."""
        where = self._where(epoch)
        data = self.store.read(manifests.manifest_path(epoch))
        manifest, checksum = manifests.decode(data, where)
        mine = (epoch, self.identity.query, self.identity.key_groups)
        if (manifest.epoch, manifest.query, manifest.key_groups) != mine:
            raise CorruptManifestError(
                f"{where} is intact but is another manifest: it is epoch {manifest.epoch} of "
                f"query {manifest.query} with {manifest.key_groups} key groups; this is query "
                f"{self.identity.query} with {self.identity.key_groups}. Restore the file from a "
                "backup of this location."
            )
        return manifest, checksum

    def _where(self, epoch: Epoch) -> str:
        return f"{self.store.url}/{manifests.manifest_path(epoch)}"

    def epochs(self) -> list[Epoch]:
        """All epochs whose manifest exists, ascending.

        A list may lag behind, so its holes and what may come after it are looked at one by one.
        """
        paths = self.store.list(MANIFESTS)
        found = {e for e in map(manifests.epoch_of_path, paths) if e is not None}
        following = max(found, default=0) + 1
        holes = set(range(max(min(found, default=following), following - LAG), following)) - found
        found.update(Epoch(epoch) for epoch in sorted(holes) if self.has(epoch))
        while self.has(following):
            found.add(Epoch(following))
            following += 1
        return sorted(found)

    def has(self, epoch: int) -> bool:
        """Whether an epoch's manifest exists."""
        return self.store.size(manifests.manifest_path(Epoch(epoch))) is not None

    def holds(self, trail: Trail) -> bool:
        """Whether the epoch that a trail is at is there, and in the same history.

        After the location was restored from a backup, the same numbers stand for other epochs. The
        end of a manifest's file is its checksum, and no two have the same.
        """
        if trail.epoch == 0:
            return True
        path = manifests.manifest_path(trail.epoch)
        size = self.store.size(path)
        if size is None:
            return False
        try:
            end = self.store.read_range(path, max(0, size - SEAL_BYTES), SEAL_BYTES)
        except MissingFileError:
            return False
        return end == trail.checksum.encode() + b"\n"

    def head(self) -> Epoch:
        """The last committed epoch; 0 if there is none."""
        epochs = self.epochs()
        return epochs[-1] if epochs else Epoch(0)

    def trail(self, epoch: Epoch) -> Trail:
        """What is live at an epoch."""
        if epoch == 0:
            return Trail(self.identity.key_groups)
        try:
            manifest, checksum = self.read(epoch)
        except MissingFileError as error:
            raise UnknownEpochError(self._no_such_epoch(epoch)) from error
        try:
            full, full_checksum = (
                (manifest, checksum) if manifest.is_full else self.read(manifest.last_full)
            )
            with manifests.malformed(self._where(full.epoch)):
                trail = Trail.from_full(full, full_checksum)
            if not manifest.is_full:
                self.follow(trail, Epoch(epoch - 1))
                trail.advance(manifest, checksum)
        except MissingFileError as error:
            raise CorruptManifestError(
                f"epoch {epoch} of {self.store.url} needs a manifest that is missing: {error}. "
                "Restore it from a backup, or open another epoch."
            ) from error
        return trail

    def newest(self) -> Trail:
        """What is live at the last committed epoch; before the first, nothing."""
        while True:
            head = self.head()
            try:
                return self.trail(head)
            except (UnknownEpochError, CorruptManifestError):
                if self.head() == head:
                    raise
                # Another process committed more and collected it between the two calls.

    def follow(self, trail: Trail, epoch: Epoch) -> None:
        """Bring a trail forward to an epoch."""
        while trail.epoch < epoch:
            trail.advance(*self.read(Epoch(trail.epoch + 1)))

    def catch_up(self, trail: Trail) -> Epoch:
        """Bring a trail forward to the last committed epoch, without listing anything."""
        while True:
            try:
                manifest, checksum = self.read(Epoch(trail.epoch + 1))
            except MissingFileError:
                return trail.epoch
            trail.advance(manifest, checksum)

    def _no_such_epoch(self, epoch: Epoch) -> str:
        if not self.epochs():
            return f"{self.store.url} has no committed epoch yet; epoch {epoch} was asked for."
        return f"epoch {epoch} of {self.store.url} is not there: {self.retained()}"

    def retained(self) -> str:
        """The available epochs, for messages."""
        epochs = self.epochs()
        if not epochs:
            return "no epoch is retained."
        runs = [run.partition("-") for run in format_ranges(epochs).split(",")]
        listed = ", ".join(f"{first} to {last or first}" for first, _, last in runs)
        return f"epochs {listed} are retained."

    def is_full_due(self, trail: Trail) -> bool:
        """Whether the manifest after a trail has to repeat all that is live."""
        return trail.last_full == 0 or trail.epoch + 1 - trail.last_full >= FULL_EVERY

    def commit(
        self,
        trail: Trail,
        *,
        run: str,
        batch_id: int | None,
        watermark_ms: int | None,
        operators: dict[TableName, OperatorCommit],
        specs: dict[OperatorName, dict[str, Any]],
        full: bool,
        figures: dict[str, Any] | None = None,
        time_ms: int | None = None,
        processing_ms: int = 0,
        unmet_parallelism: dict[OperatorName, int] | None = None,
        watermarks: dict[OperatorName, int] | None = None,
        offsets: str | None = None,
    ) -> Manifest:
        """Commit the epoch after `trail`, and advance `trail` to it; now, if no time is given.

        `specs` are for a full manifest only.
        """
        epoch = Epoch(trail.epoch + 1)
        full = full or self.is_full_due(trail)
        snapshot = None
        if full:
            after: dict[TableName, OperatorLog] = {}
            for name in {**trail.operators, **operators}:
                log = OperatorLog.from_json(trail.operator(name).to_json(), trail.key_groups)
                if name in operators:
                    log.apply(operators[name])
                after[name] = log
            snapshot = {name: log.to_json() for name, log in after.items()}
        manifest = Manifest(
            query=self.identity.query,
            run=run,
            epoch=epoch,
            parent=trail.checksum,
            last_full=epoch if full else trail.last_full,
            batch_id=batch_id,
            watermark_ms=watermark_ms,
            time_ms=clock.now_ms() if time_ms is None else time_ms,
            key_groups=self.identity.key_groups,
            operators=operators,
            specs=specs if full else None,
            snapshot=snapshot,
            figures=figures,
            processing_ms=processing_ms,
            unmet_parallelism=unmet_parallelism or {},
            watermarks=watermarks or {},
            offsets=offsets,
            format=self.identity.format,
        )
        data, checksum = manifests.encode(manifest)
        path = manifests.manifest_path(epoch)
        try:
            self.store.create(path, data)
        except AlreadyExistsError as error:
            self._check_winner(epoch, checksum, run, error)
        self._check_lateness(epoch, checksum, run)
        trail.advance(manifest, checksum)
        return manifest

    def _check_winner(
        self, epoch: Epoch, checksum: str, run: str, error: AlreadyExistsError
    ) -> None:
        """Raise unless the manifest that exists is this very one, written but not acknowledged."""
        try:
            winner, winner_checksum = self.read(epoch)
        except MissingFileError:
            name = "another run, whose manifest is no longer retained"
            raise _fenced(self.store.url, epoch, name, run) from error
        if winner_checksum != checksum:
            raise fenced_by(self.store.url, winner, run) from error

    def _check_lateness(self, epoch: Epoch, checksum: str, run: str) -> None:
        """Raise if the epoch that was just created had been committed and collected before.

        The head is never collected: an epoch that is the head was not there before. If there are
        later ones, either they were built on it, or its name had become free again. Its parent
        says nothing: a reader's lease may have kept it, a collection may have taken it at this
        moment. See docs/decisions/0014.

        To find the head takes a list. An epoch that was collected is marked, so without a mark
        there is nothing to find.
        """
        if not is_marked(self.store, epoch):
            return
        head = self.head()
        if head <= epoch:
            return
        try:
            parent = self.read(Epoch(epoch + 1))[0].parent
        except MissingFileError:
            # Collected. This epoch may be a right one that a reader still holds: it stays, and if
            # it is not, the next collection takes it.
            parent = None
        if parent == checksum:
            return
        if parent is not None:
            self.store.delete(manifests.manifest_path(epoch))
        raise FencedError(
            f"epoch {epoch} of {self.store.url} was committed before: run {self.read(head)[0].run} "
            f"has committed up to epoch {head}, and this run, {run}, has lost the location and "
            "stops. Nothing is lost: only one query may run on a location, so stop one of the two."
        )


def fenced_by(url: str, winner: Manifest, run: str) -> FencedError:
    """The error of a run that has lost a location to the run of a manifest."""
    return _fenced(url, winner.epoch, f"run {winner.run} (batch {winner.batch_id})", run)


def _fenced(url: str, epoch: Epoch, winner: str, run: str) -> FencedError:
    return FencedError(
        f"epoch {epoch} of {url} was committed by {winner}; this run, {run}, has lost the location "
        "and stops. Nothing is lost: only one query may run on a location, so stop one of the two."
    )
