"""Every mistake has an error class of its own and a message that says what to do next."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.stress import few

import millrace as mr
from millrace import errors
from millrace.spark import session as sessions

SCHEMA = (
    "k string, v int, s string, t timestamp, m map<string,int>, x variant, "
    "xs array<map<string,int>>"
)

Attempt = Callable[[mr.Stream], Any]

PROGRAMS: dict[str, tuple[type[Exception], Attempt, str]] = {
    "unknown key": (
        errors.UnknownColumnError,
        lambda s: s.key_by("k", "nope"),
        "no column 'nope'. The columns are k, v",
    ),
    "unknown input": (
        errors.UnknownColumnError,
        lambda s: s.key_by("k").aggregate(n=mr.sum("nope")),
        "no column 'nope'. The columns are",
    ),
    "unknown column in an expression": (
        errors.UnknownColumnError,
        lambda s: s.key_by("k").aggregate(n=mr.sum(F.col("nope") + 1)),
        "cannot resolve",
    ),
    "key of an earlier step": (
        errors.UnknownColumnError,
        lambda s: s.key_by("k").aggregate(n=mr.count()).key_by("v"),
        "no column 'v'. The columns are k, n",
    ),
    "map as key": (
        errors.UnhashableKeyError,
        lambda s: s.key_by("m"),
        "array_sort(map_entries(m))",
    ),
    "variant as key": (errors.UnhashableKeyError, lambda s: s.key_by("x"), "cast to a plain type"),
    "map inside a key": (errors.UnhashableKeyError, lambda s: s.key_by("xs"), "'xs[]'"),
    "same operator name": (
        errors.DuplicateNameError,
        lambda s: (
            s.key_by("k")
            .aggregate(n=mr.count(), name="t")
            .key_by("n")
            .aggregate(m=mr.count(), name="t")
        ),
        "Give each its own name",
    ),
    "key twice": (errors.DuplicateNameError, lambda s: s.key_by("k", "k"), "names a column twice"),
    "aggregate named as a key": (
        errors.DuplicateNameError,
        lambda s: s.key_by("k").aggregate(k=mr.count()),
        "Rename an aggregate",
    ),
    "sum of strings": (
        errors.UnsupportedTypeError,
        lambda s: s.key_by("k").aggregate(n=mr.sum("s")),
        "type string; it takes numbers. Cast the column",
    ),
    "mean of timestamps": (
        errors.UnsupportedTypeError,
        lambda s: s.key_by("k").aggregate(n=mr.mean("t")),
        "Cast the column",
    ),
    "maximum of maps": (
        errors.UnsupportedTypeError,
        lambda s: s.key_by("k").aggregate(n=mr.max("m")),
        "it takes numbers, strings",
    ),
    "operator name with a slash": (
        errors.InvalidNameError,
        lambda s: s.key_by("k").aggregate(n=mr.count(), name="../up"),
        "use letters, digits",
    ),
    "no key": (errors.UsageError, lambda s: s.key_by(), "at least one column"),
    "key is not a name": (
        errors.UsageError,
        lambda s: s.key_by(3),
        "takes the names of columns and Spark Columns, not 3",
    ),
    "no aggregate": (errors.UsageError, lambda s: s.key_by("k").aggregate(), "n=mr.count()"),
    "not an aggregate": (
        errors.UsageError,
        lambda s: s.key_by("k").aggregate(n=F.sum("v")),
        "such as mr.sum('value')",
    ),
    "union of different columns": (
        errors.UsageError,
        lambda s: s.key_by("k").aggregate(n=mr.count()).union(s),
        "Spark cannot unite them",
    ),
    "transform gives no frame": (
        errors.UsageError,
        lambda s: s.transform(lambda df: None),
        "returned NoneType",
    ),
    "no operator": (errors.UsageError, lambda s: s.to("noop").start("/nowhere"), "no operator"),
}


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "in", SCHEMA)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_wrong_program_is_refused_before_it_starts(
    spark: SparkSession, folder: support.Folder, what: str
) -> None:
    kind, attempt, words = PROGRAMS[what]
    with pytest.raises(kind, match=re.escape(words)) as caught:
        attempt(mr.stream(folder.stream(spark)))
    assert type(caught.value) is kind
    assert isinstance(caught.value, mr.MillraceError)


def test_a_wrong_source_is_refused(spark: SparkSession, folder: support.Folder) -> None:
    with pytest.raises(errors.NotStreamingError, match=r"spark\.readStream"):
        mr.stream(spark.range(3))
    with pytest.raises(errors.UsageError, match="takes a streaming DataFrame"):
        mr.stream([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(errors.UnknownColumnError, match="no column 'when'"):
        mr.stream(folder.stream(spark), event_time="when", watermark="1 minute")
    with pytest.raises(errors.UsageError, match="go together"):
        mr.stream(folder.stream(spark), event_time="t")


def test_wrong_options_are_refused_and_write_nothing(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    sinked = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count()).to("noop")
    for options, words in (
        ({"parallelism": 0}, "between 1 and the number of key groups, 256"),
        ({"parallelism": -1}, "between 1 and"),
        ({"parallelism": 257}, "between 1 and the number of key groups, 256"),
        ({"parallelism": 5, "key_groups": 4}, "between 1 and the number of key groups, 4"),
        ({"key_groups": 100}, "a power of two"),
        ({"key_groups": 8192}, "a power of two from 2 to 4096"),
        ({"trigger": "soon"}, 'a time such as "1 second"'),
        ({"trigger": ""}, "available_now"),
        ({"retain_epochs": 0}, "a whole number above 0"),
        ({"memory": "much"}, "'2 GiB'"),
        ({"memory": 0}, "above 0"),
        ({"autoscale": 5}, "give what mr.autoscale returns"),
        ({"autoscale": mr.autoscale(min=2), "parallelism": 1}, "contradicts autoscale(min=2"),
        ({"autoscale": mr.autoscale(max=16), "key_groups": 8}, "the location has 8 key groups"),
        (
            {"autoscale": mr.autoscale(latency="1 second"), "trigger": "5 seconds"},
            "latency=1 s with a trigger of 5 s",
        ),
    ):
        with pytest.raises(errors.UsageError, match=re.escape(words)):
            sinked.start(str(tmp_path / "l"), **options)  # type: ignore[arg-type]
    assert not (tmp_path / "l").exists()


Windowing = Callable[[mr.Stream], Any]

WINDOWS: dict[str, tuple[type[Exception], Windowing, str]] = {
    "without event time": (
        errors.EventTimeError,
        lambda s: s.key_by("k").aggregate(n=mr.count()).key_by("k").window("1 minute"),
        "this stream has none. Give it one",
    ),
    "behind an update": (
        errors.EventTimeError,
        lambda s: (
            s.key_by("k")
            .window("1 minute")
            .aggregate(n=mr.count(), emit="update")
            .key_by("k")
            .window("1 hour")
        ),
        "with emit='final'",
    ),
    "a dropped event time": (
        errors.EventTimeError,
        lambda s: s.transform(lambda df: df.drop("t")).key_by("k").window("1 minute"),
        "the event time 't', which transform() has dropped",
    ),
    "a dropped window": (
        errors.EventTimeError,
        lambda s: (
            s.key_by("k")
            .window("1 minute")
            .aggregate(n=mr.count())
            .transform(lambda df: df.drop("window"))
            .key_by("k")
            .window("1 hour")
        ),
        "the event time 'window', which transform() has dropped",
    ),
    "another type": (
        errors.EventTimeError,
        lambda s: (
            s.transform(lambda df: df.withColumn("t", F.lit("x"))).key_by("k").window("1 minute")
        ),
        "transform() has made a string",
    ),
    "slide longer than size": (
        errors.WindowError,
        lambda s: s.key_by("k").window("1 minute", slide="2 minutes"),
        "the slide, 2 minutes, is longer than the window, 1 minute",
    ),
    "too many panes": (
        errors.WindowError,
        lambda s: s.key_by("k").window("1 day", slide="7 milliseconds"),
        "Choose a longer slide that divides the size",
    ),
    "offset beyond the slide": (
        errors.WindowError,
        lambda s: s.key_by("k").window("1 minute", offset="-1 minute"),
        "is not shorter than the slide",
    ),
    "no length": (errors.WindowError, lambda s: s.key_by("k").window("0 seconds"), "than zero"),
    "negative": (errors.WindowError, lambda s: s.key_by("k").window("-5 minutes"), "-5 minutes"),
    "no duration": (errors.WindowError, lambda s: s.key_by("k").window("soon"), "'30 days'"),
    "a number": (errors.WindowError, lambda s: s.key_by("k").window(60), "such as '10 minutes'"),
    "months": (errors.WindowError, lambda s: s.key_by("k").window("1 month"), "differ in length"),
    "one length where several go": (
        errors.WindowError,
        lambda s: s.key_by("k").windows("1 hour", slide="1 minute"),
        "give a list of lengths",
    ),
    "no lengths": (
        errors.WindowError,
        lambda s: s.key_by("k").windows([], slide="1 minute"),
        "at least one length",
    ),
    "a length twice": (
        errors.WindowError,
        lambda s: s.key_by("k").windows(["1 hour", "60 minutes"], slide="1 minute"),
        "the length 1 hour twice",
    ),
    "slide longer than a length": (
        errors.WindowError,
        lambda s: s.key_by("k").windows(["1 hour", "1 minute"], slide="5 minutes"),
        "the slide, 5 minutes, is longer than the window, 1 minute",
    ),
    "lengths without a common slide": (
        errors.WindowError,
        lambda s: s.key_by("k").windows(["1 hour", "90 seconds"], slide="1 minute"),
        "90 seconds is not a multiple of the slide, 1 minute",
    ),
    "an aggregate called as the length": (
        errors.DuplicateNameError,
        lambda s: (
            s.key_by("k").windows(["1 hour"], slide="1 hour").aggregate(window_length=mr.count())
        ),
        "two columns called 'window_length'",
    ),
    "unknown emit": (
        errors.UsageError,
        lambda s: s.key_by("k").window("1 minute").aggregate(n=mr.count(), emit="append"),
        "use 'final', 'update', 'early=10 seconds' for",
    ),
    "final without a window": (
        errors.EmissionError,
        lambda s: s.key_by("k").aggregate(n=mr.count(), emit="final"),
        "aggregate(): emit='final' is for results that end, and without windows a key's can",
    ),
    "early top without a window": (
        errors.EmissionError,
        lambda s: s.key_by("k").top(3, by="v", emit="early=10 seconds"),
        "top(): emit='early=10 seconds' is for results that end",
    ),
    "final latest": (
        errors.EmissionError,
        lambda s: s.key_by("k").latest(emit="final"),
        "Divide its rows with window() or session(), or use emit='update'",
    ),
    "unknown emit without a window": (
        errors.UsageError,
        lambda s: s.key_by("k").aggregate(n=mr.count(), emit="append"),
        "emit='append': use 'final', 'update'",
    ),
    "early without a time": (
        errors.UsageError,
        lambda s: s.key_by("k").window("1 minute").aggregate(n=mr.count(), emit="early"),
        "emit='early'",
    ),
    "an aggregate called window": (
        errors.DuplicateNameError,
        lambda s: s.key_by("k").window("1 minute").aggregate(window=mr.count()),
        "two columns called 'window'",
    ),
    "a key that is no column": (
        errors.UnknownColumnError,
        lambda s: s.key_by(F.lower("nope")),
        "key_by(): Spark cannot resolve",
    ),
    "a key that is nothing": (errors.UsageError, lambda s: s.key_by(7), "not 7"),
}


def test_windows_that_cannot_be_are_refused(spark: SparkSession, folder: support.Folder) -> None:
    stream = mr.stream(folder.stream(spark), event_time="t", watermark="1 minute")
    for name, (error, attempt, words) in WINDOWS.items():
        with pytest.raises(error, match=re.escape(words)) as caught:
            attempt(stream)
        assert type(caught.value) is error, name
    with pytest.raises(errors.EventTimeError, match="is of type int, and an event time"):
        mr.stream(folder.stream(spark), event_time="v", watermark="1 minute")
    for late in ("soon", "-1 minute"):
        with pytest.raises(errors.EventTimeError, match="Say how late rows may be"):
            mr.stream(folder.stream(spark), event_time="t", watermark=late)


def test_a_wrong_location_is_refused(
    spark: SparkSession, folder: support.Folder, tmp_path: Path
) -> None:
    sinked = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count()).to("noop")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("my only copy")
    with pytest.raises(errors.ForeignLocationError, match=r"thesis\.tex.*empty directory"):
        sinked.start(str(foreign))
    assert support.files_of(foreign).keys() == {"thesis.tex"}
    with pytest.raises(errors.UnwritableLocationError, match="Check the permissions"):
        sinked.start(str(foreign / "thesis.tex" / "below"))
    with pytest.raises(errors.UnwritableLocationError, match="Check the permissions"):
        sinked.start("/proc/millrace")
    with pytest.raises(errors.NotALocationError, match="checkpointLocation"):
        mr.open(str(foreign))
    with pytest.raises(errors.NotALocationError, match="Check the path"):
        mr.open(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("module", "version", "advice"),
    [
        (pyspark, "4.2.0", "pip install 'pyspark>=4.3,<5'"),
        (pyspark, "5.0.0.dev1", "pip install 'pyspark>=4.3,<5'"),
        (pandas, "3.0.1", "pip install 'pandas>=2.2,<3'"),
    ],
)
def test_unsupported_versions_are_refused(
    spark: SparkSession,
    folder: support.Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    version: str,
    advice: str,
) -> None:
    sinked = mr.stream(folder.stream(spark)).key_by("k").aggregate(n=mr.count()).to("noop")
    monkeypatch.setattr(module, "__version__", version)
    for attempt in (lambda: sinked.start(str(tmp_path / "l")), lambda: mr.session()):
        with pytest.raises(errors.UnsupportedVersionError, match=re.escape(advice)) as caught:
            attempt()
        assert version in str(caught.value)
    assert not (tmp_path / "l").exists()


def test_a_session_that_lacks_settings_is_warned_about(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sessions.check_session(spark) == []
    monkeypatch.setitem(sessions.SETTINGS, "spark.millrace.wish", ("yes", "tests want it"))
    with pytest.warns(UserWarning, match=r"spark\.millrace\.wish=yes \(tests want it\)"):
        lacking = sessions.check_session(spark)
    assert lacking == ["spark.millrace.wish"]
    with pytest.warns(UserWarning, match=r"Use mr\.session\(\.\.\.\), or set before"):
        assert mr.session("again").sparkContext is spark.sparkContext


class Damage:
    """A location of three epochs that can be copied and damaged.

    A copy has another path, so no worker has a replica of it: it is read from disk.
    """

    ROWS = tuple((f"key{i % 40}", i) for i in range(160))

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark, self._root = spark, root
        self.folder = support.Folder(root / "in", "k string, v int")
        self._copies = 0
        self.original = root / "original"
        query = self.start(self.original)
        for _ in range(3):
            self.folder.drop(self.ROWS)
            query.process_all_available()
        query.stop()
        self.folder.drop(self.ROWS)

    def start(self, location: Path) -> mr.Query:
        stream = mr.stream(self.folder.stream(self._spark)).key_by("k")
        sinked = stream.aggregate(n=mr.count(), total=mr.sum("v"), name="t").to("noop")
        return sinked.start(str(location), parallelism=1, key_groups=2)

    def copy(self) -> Path:
        self._copies += 1
        return Path(shutil.copytree(self.original, self._root / f"copy{self._copies}"))

    def go_on(self, location: Path) -> None:
        query = self.start(location)
        try:
            query.process_all_available()
        finally:
            query.stop()

    def assert_refused(self, location: Path, kind: type[Exception], words: str) -> None:
        before = len(list((location / "manifests").iterdir()))
        with pytest.raises(kind, match=words):
            self.go_on(location)
        assert len(list((location / "manifests").iterdir())) == before, "it committed all the same"
        with pytest.raises(kind, match=words):
            mr.open(str(location)).to_arrow()


@pytest.fixture(scope="module")
def damage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Damage:
    return Damage(spark, tmp_path_factory.mktemp("damage"))


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


def test_an_undamaged_copy_goes_on(spark: SparkSession, damage: Damage) -> None:
    location = damage.copy()
    damage.go_on(location)
    aggregates = {"n": mr.count(), "total": mr.sum("v")}
    expected = support.batch_state(damage.folder.batch(spark), ["k"], aggregates)
    support.assert_same(mr.open(str(location)).to_arrow(), expected, ["k"], "copy")


@pytest.mark.parametrize("at", few([0.0, 0.05, 0.5, 0.7, 0.95, 1.0], 0.05, 1.0))
def test_a_flipped_byte_in_a_segment(damage: Damage, at: float) -> None:
    location = damage.copy()
    segment = sorted((location / "segments" / "t").iterdir())[-1]
    flip(segment, at)
    damage.assert_refused(
        location, errors.CorruptSegmentError, f"{segment.name}.*damaged.*restore it from a backup"
    )


@pytest.mark.parametrize("keep", few([0, 100, -1], 100))
def test_a_truncated_segment(damage: Damage, keep: int) -> None:
    location = damage.copy()
    segment = sorted((location / "segments" / "t").iterdir())[-1]
    segment.write_bytes(segment.read_bytes()[:keep])
    damage.assert_refused(
        location, errors.CorruptSegmentError, f"{segment.name} has .* bytes, its manifest says"
    )


def test_a_missing_segment(damage: Damage) -> None:
    location = damage.copy()
    segment = sorted((location / "segments" / "t").iterdir())[-1]
    segment.unlink()
    damage.assert_refused(
        location, errors.MissingFileError, f"{segment.name} is missing.*restore it from a backup"
    )


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("harm", ["flip", "truncate", "empty"])
def test_a_damaged_manifest(damage: Damage, epoch: int, harm: str) -> None:
    location = damage.copy()
    manifest = location / "manifests" / f"{epoch:012d}.json"
    if harm == "flip":
        flip(manifest, 0.5)
    else:
        manifest.write_bytes(manifest.read_bytes()[: -20 if harm == "truncate" else 0])
    damage.assert_refused(
        location, errors.CorruptManifestError, f"{manifest.name} is damaged.*from a backup"
    )


def test_a_missing_manifest(damage: Damage) -> None:
    location = damage.copy()
    (location / "manifests" / f"{2:012d}.json").unlink()
    damage.assert_refused(location, errors.CorruptManifestError, "a manifest that is missing")


def test_a_lost_last_manifest_does_not_lose_its_batch_silently(damage: Damage) -> None:
    """Spark is past a batch that the manifests do not have: going on would leave it out."""
    location = damage.copy()
    (location / "manifests" / f"{3:012d}.json").unlink()
    with pytest.raises(mr.MillraceError, match="batch"):
        damage.go_on(location)
    with pytest.raises(errors.MissingEpochError, match="of epoch 2, is of batch 1"):
        mr.open(str(location))
    assert mr.open(str(location), epoch=2).epoch == 2


def test_a_damaged_identity(damage: Damage) -> None:
    location = damage.copy()
    flip(location / "millrace.json", 0.5)
    damage.assert_refused(location, errors.CorruptManifestError, r"millrace\.json is damaged")
