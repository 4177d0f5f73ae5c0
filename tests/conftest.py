"""What all tests share: markers by folder, Hypothesis profiles, and one Spark session."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# The folders that are a kind of test, and so a marker.
KINDS = ("unit", "property", "model", "simulation", "spark", "faults")


def _java_options() -> str:
    from tests import class_archive

    return class_archive.options()


# Spark reads these when its JVM and its Python workers start. The root is on the workers' path
# because functions in test modules are pickled by name, such as tests.spark.test_counts.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.servers import proxy, s3  # noqa: E402

# Copies of remote segments are shared by location, and many tests call theirs the same.
os.environ["MILLRACE_CACHE_DIR"] = tempfile.mkdtemp(prefix="millrace-tests-")
atexit.register(shutil.rmtree, os.environ["MILLRACE_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("JAVA_TOOL_OPTIONS", _java_options())
# Spark's Python workers have the environment that Spark started in.
os.environ.update(s3.ENVIRONMENT)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
)

# The same examples every time, so that a run that fails, fails for a reason in the change under
# test. HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=24,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("stress", settings.get_profile("default"), max_examples=120)
settings.register_profile(
    "thorough", settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        kind = item.path.relative_to(TESTS).parts[0]
        if kind in KINDS:
            item.add_marker(kind)
    # The longest first, so that nobody waits for them in the end.
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local session for the whole run: a JVM takes seconds to start."""
    import millrace as mr
    from millrace_lab.local_session import local_settings

    scratch = tmp_path_factory.mktemp("spark")
    session = mr.session(
        "millrace-tests",
        master="local[2]",
        config={
            **local_settings("1g", scratch),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def moto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3.moto(tmp_path_factory.mktemp("moto")) as port:
        yield port


@pytest.fixture(scope="session")
def minio_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3.minio(tmp_path_factory.mktemp("minio")) as port:
        yield port


@pytest.fixture(scope="session")
def hdfs_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.servers.hdfs import hdfs

    with hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    from tests.servers.postgres import postgres

    with postgres() as url:
        yield url


@pytest.fixture
def database(postgres_server: str) -> str:
    """The URL of a new database."""
    from tests.servers.postgres import new_database

    return new_database(postgres_server, f"tests_{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.servers.redis import redis

    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def hdfs_folder(hdfs_root: str) -> str:
    """A new folder of HDFS."""
    return f"{hdfs_root}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def network() -> Iterator[proxy.Proxy]:
    """The way to S3, which a test may disturb."""
    proxy.S3.reset()
    yield proxy.S3
    proxy.S3.reset()


@pytest.fixture
def moto_bucket(moto_port: int, network: proxy.Proxy) -> str:
    """A new bucket on moto's server."""
    return _bucket(network, moto_port)


@pytest.fixture
def minio_bucket(minio_port: int, network: proxy.Proxy) -> str:
    """A new bucket on MinIO."""
    return _bucket(network, minio_port)


def _bucket(network: proxy.Proxy, port: int) -> str:
    network.target = ("127.0.0.1", port)
    name = f"tests-{uuid.uuid4().hex[:12]}"
    s3.make_bucket(name)
    return f"s3://{name}"
