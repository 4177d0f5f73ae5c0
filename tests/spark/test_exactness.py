"""State and outputs equal one Spark batch over all input, whatever the schema and the restarts.

Each seed draws keys, skew, aggregates, batch sizes, numbers of input partitions, and a parallelism
for every start. Together the seeds cover every key type and every function over every type.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.spark import support, values
from tests.stress import few

import millrace as mr

pytestmark = pytest.mark.usefixtures("generated_code")

SEEDS = range(4)
FUNCTIONS: dict[str, Any] = {
    "count": mr.count,
    "sum": mr.sum,
    "min": mr.min,
    "max": mr.max,
    "mean": mr.mean,
    "var": mr.variance,
    "var_pop": lambda c: mr.variance(c, sample=False),
    "sd": mr.stddev,
    "sd_pop": lambda c: mr.stddev(c, sample=False),
    "first": mr.first,
    "last": mr.last,
    "first_known": lambda c: mr.first(c, ignore_nulls=True),
    "last_known": lambda c: mr.last(c, ignore_nulls=True),
}
TAKES = {
    "count": values.ANY,
    "min": values.ORDERED,
    "max": values.ORDERED,
    "first": values.ANY,
    "last": values.ANY,
    "first_known": values.ANY,
    "last_known": values.ANY,
}
EVERY = [(f, t) for f in FUNCTIONS for t in TAKES.get(f, values.NUMBERS)]


class Scenario:
    """Everything one seed decides."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        kinds = list(values.KEY_TYPES)
        random.Random(99).shuffle(kinds)
        self.keys = {
            f"k_{kind}": values.KEY_TYPES[kind] for kind in kinds[seed % len(SEEDS) :: len(SEEDS)]
        }
        pairs = list(EVERY)
        random.Random(7).shuffle(pairs)
        pairs = pairs[seed % len(SEEDS) :: len(SEEDS)]
        self.inputs = {f"v_{kind}": values.ANY[kind] for _, kind in pairs}
        self.aggregates = {"n": mr.count()} | {
            f"{function}_{kind}": FUNCTIONS[function](f"v_{kind}") for function, kind in pairs
        }
        columns = {**self.keys, **self.inputs}
        self.schema = T.StructType([T.StructField(n, t) for n, (t, _) in columns.items()])
        self.epochs = [rng.choice([1, 3, 40, 400]) for _ in range(4)]
        self.restart_before = {0, rng.choice([1, 2, 3])}
        # first and last depend on the order of rows, which one file per epoch makes plain.
        self.files = 1 if seed % 2 else 3
        hot = [self._key() for _ in range(3)]
        self._hot = hot

    def _key(self) -> list[Any]:
        return [values.maybe(self.rng, draw) for _, draw in self.keys.values()]

    def rows(self, count: int) -> list[list[Any]]:
        rows = []
        for _ in range(count):
            key = self.rng.choice(self._hot) if self.rng.random() < 0.6 else self._key()
            rows.append(key + [values.maybe(self.rng, draw) for _, draw in self.inputs.values()])
        return rows

    def chosen(self) -> dict[str, mr.Aggregate]:
        ordered = self.files == 1
        return {
            name: a
            for name, a in self.aggregates.items()
            if ordered or a.function not in ("first", "last")
        }


@pytest.mark.parametrize("seed", few(range(12), 0))
def test_state_and_outputs_equal_a_spark_batch(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    scenario = Scenario(seed)
    rng, keys, aggregates = scenario.rng, list(scenario.keys), scenario.chosen()
    folder = support.Folder(tmp_path / "in", scenario.schema)
    location = str(tmp_path / "location")
    outputs: support.Outputs = {}
    keyed = mr.stream(folder.stream(spark)).key_by(*keys).aggregate(name="all", **aggregates)
    sinked = keyed.for_each_batch(support.record(outputs))
    query = None
    for epoch, size in enumerate(scenario.epochs):
        if epoch in scenario.restart_before:
            if query is not None:
                query.stop()
            query = sinked.start(location, parallelism=rng.randint(1, 4))
        assert query is not None
        folder.drop(scenario.rows(size), files=min(scenario.files, size))
        query.process_all_available()
    assert query is not None
    query.stop()
    where = f"seed {seed}"
    assert query.epoch == len(scenario.epochs), where
    everything = folder.batch(spark)
    state = mr.open(location).to_arrow("all")
    support.assert_same(state, support.batch_state(everything, keys, aggregates), keys, where)
    expected = support.batch_outputs(everything, keys, aggregates, len(scenario.epochs))
    for epoch, table in expected.items():
        support.assert_same(outputs[epoch - 1], table, keys, f"{where}, epoch {epoch}")
    final = support.last_per_key(outputs.values(), keys)
    support.assert_same(final, state, keys, f"{where}, last outputs")


@pytest.mark.stress
def test_a_long_run_with_merges_stays_exact(spark: SparkSession, tmp_path: Path) -> None:
    """Many small epochs over few key groups, so that bases, deltas and runs all come into play."""
    rng = random.Random(5)
    folder = support.Folder(tmp_path / "in", "k long, v long, s string")
    location = str(tmp_path / "location")
    aggregates = {"n": mr.count(), "total": mr.sum("v"), "top": mr.max("s")}
    stream = mr.stream(folder.stream(spark, maxFilesPerTrigger="1")).key_by("k")
    sinked = stream.aggregate(name="sums", **aggregates).to("noop")
    parallelism = iter([2, 3, 1])
    for _ in range(3):
        for _ in range(8):
            keys = [min(int(rng.expovariate(0.02)), 200) for _ in range(120)]
            folder.drop([(k, rng.randint(-9, 9), str(rng.randint(0, 99))) for k in keys])
        query = sinked.start(location, parallelism=next(parallelism), key_groups=8)
        query.process_all_available()
        query.stop()
    reader = mr.open(location)
    assert reader.epoch == 24
    expected = support.batch_state(folder.batch(spark), ["k"], aggregates)
    support.assert_same(reader.to_arrow("sums"), expected, ["k"], "after 24 epochs")
    earlier = support.batch_state(folder.batch(spark).where("_epoch <= 11"), ["k"], aggregates)
    support.assert_same(mr.open(location, epoch=11).to_arrow(), earlier, ["k"], "at epoch 11")


def test_null_is_a_key_and_its_place_counts(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "a string, b string, v int")
    query = (
        mr.stream(folder.stream(spark))
        .key_by("a", "b")
        .aggregate(n=mr.count(), known=mr.count("v"), name="t")
        .to("noop")
        .start(str(tmp_path / "location"), parallelism=2)
    )
    rows = [("x", None), (None, "x"), (None, None), ("", None), (None, ""), ("x", "x")]
    for times in (1, 2):
        folder.drop([(*row, None if i % 2 else i) for i, row in enumerate(rows * times)])
        query.process_all_available()
    query.stop()
    state = mr.open(str(tmp_path / "location")).to_arrow()
    assert support.by_key(state, ["a", "b"], "") == {
        row: {"n": 3, "known": 0 if i % 2 else 3} for i, row in enumerate(rows)
    }
