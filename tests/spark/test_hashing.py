"""Fingerprints computed without Spark are Spark's, for every type a key may have."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.spark import values
from tests.spark.test_fingerprint import HAND_MADE, SCHEMES, fingerprinted
from tests.stress import few

from millrace import types
from millrace.errors import UnhashableKeyError
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.keys import check_computable
from millrace.keygroups.scheme import UNSALTED, Scheme

pytestmark = pytest.mark.usefixtures("generated_code")

LONG_TEXTS = [("x" * n,) for n in (*range(60), 63, 64, 65, 126, 127, 128, 300, 1000, 20_000)]


def both(
    spark: SparkSession, schema: T.StructType | str, keys: list[Any], scheme: Scheme = UNSALTED
) -> tuple[Any, Any]:
    df = spark.createDataFrame(keys, schema).coalesce(1)
    fields = df.schema.fields
    table = fingerprinted(df, scheme).toArrow()
    columns = [
        types.conform(table.column(f.name), types.arrow_type(f.dataType, f.name)) for f in fields
    ]
    # A slice has an offset in every buffer; its rows must not be mistaken for the first ones.
    sliced = [column.slice(1) for column in columns]
    ours = fingerprints(columns, scheme)
    tails = fingerprints(sliced, scheme)
    assert [h.tolist() for h in tails] == [h.tolist()[1:] for h in ours]
    theirs = [table.column(n).to_numpy().view("uint64").tolist() for n in ("_hi", "_lo")]
    return [h.tolist() for h in ours], theirs


def is_collated(data_type: T.DataType) -> bool:
    try:
        check_computable("a", types.to_json(data_type))
    except UnhashableKeyError:
        return True
    return False


@pytest.mark.parametrize("name", [n for n in HAND_MADE if "colla" not in n])
def test_chosen_keys(spark: SparkSession, name: str) -> None:
    for scheme in SCHEMES[::2]:
        ours, theirs = both(spark, *HAND_MADE[name], scheme)
        assert ours == theirs, scheme


def test_strings_of_every_length(spark: SparkSession) -> None:
    for scheme in SCHEMES[::2]:
        ours, theirs = both(spark, "a string", LONG_TEXTS, scheme)
        assert ours == theirs, scheme


@pytest.mark.parametrize("seed", few(range(5), 0))
def test_drawn_keys_of_all_types(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    kinds = sorted(values.KEY_TYPES)
    schema = T.StructType([T.StructField(kind, values.KEY_TYPES[kind][0]) for kind in kinds])
    keys = [
        tuple(values.maybe(rng, values.KEY_TYPES[kind][1]) for kind in kinds) for _ in range(200)
    ]
    for scheme in SCHEMES:
        ours, theirs = both(spark, schema, keys, scheme)
        assert ours == theirs, scheme
    for kind in kinds:
        column = [(key[kinds.index(kind)],) for key in keys]
        ours, theirs = both(spark, T.StructType([schema[kind]]), column, rng.choice(SCHEMES))
        assert ours == theirs, kind


def test_collated_keys_are_refused() -> None:
    collated = [n for n in HAND_MADE if "colla" in n]
    assert len(collated) >= 5
    for name in collated:
        schema = T.StructType.fromDDL(HAND_MADE[name][0])
        assert any(is_collated(field.dataType) for field in schema.fields), name
    assert not is_collated(T.ArrayType(T.StringType()))
