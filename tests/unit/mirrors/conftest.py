"""Each kind of store: RocksDB in every run, Redis and PostgreSQL in `make stress`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stress import few
from tests.unit.mirrors.places import Place, PostgresPlace, RedisPlace, RocksDbPlace


@pytest.fixture(params=few(["rocksdb", "redis", "postgres"], "rocksdb"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store to mirror into."""
    if request.param == "rocksdb":
        return RocksDbPlace(tmp_path)
    return request.getfixturevalue(f"{request.param}_place")  # type: ignore[no-any-return]


@pytest.fixture
def redis_place(redis_server: str) -> RedisPlace:
    return RedisPlace(redis_server)


@pytest.fixture
def postgres_place(database: str) -> Iterator[PostgresPlace]:
    place = PostgresPlace(database)
    yield place
    place.connection.close()
