"""What all tests share: markers by folder, Hypothesis profiles, and one Spark session."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.targets import MakeTarget

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

from tests import stress  # noqa: E402

from millrace_lab.servers import ServerMissingError, s3  # noqa: E402
from millrace_lab.servers.proxy import Proxy  # noqa: E402

# Its port must be known before Spark starts; behind it stands whichever server a test asks for.
S3 = Proxy()

# Copies of remote segments are shared by location, and many tests call theirs the same.
os.environ["MILLRACE_CACHE_DIR"] = tempfile.mkdtemp(prefix="millrace-tests-")
atexit.register(shutil.rmtree, os.environ["MILLRACE_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("JAVA_TOOL_OPTIONS", _java_options())
# Spark's Python workers have the environment that Spark started in.
os.environ.update(s3.environment(S3.endpoint))
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
settings.register_profile("stress", settings.get_profile("default"), max_examples=48)
settings.register_profile(
    "thorough", settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# To compile Java for a query of a few rows takes longer than to interpret it. Programs that tests
# start in processes of their own have Spark's defaults, as have tests that use `generated_code`.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        kind = item.path.relative_to(TESTS).parts[0]
        if kind in KINDS:
            item.add_marker(kind)
    if stress.SHARE in os.environ:
        unwanted = stress.left_out(items, float(os.environ[stress.SHARE]))
        config.hook.pytest_deselected(items=list(unwanted))
        items[:] = [item for item in items if item not in unwanted]
    # The longest first, so that nobody waits for them in the end.
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


@contextmanager
def _skipping() -> Iterator[None]:
    """A test whose server is not installed is skipped; where nothing may be missing, it fails."""
    try:
        yield
    except ServerMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with _skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with _skipping():
        return (yield)


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
            **INTERPRETED,
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def generated_code(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile queries, as it does by default."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    yield
    for key, value in INTERPRETED.items():
        spark.conf.set(key, value)


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
    from millrace_lab.servers.hdfs import hdfs

    with hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    from millrace_lab.servers.postgres import postgres

    with postgres() as url:
        yield url


@pytest.fixture
def database(postgres_server: str) -> str:
    """The URL of a new database."""
    from millrace_lab.servers.postgres import new_database

    return new_database(postgres_server, f"tests_{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from millrace_lab.servers.redis import redis

    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def make_target(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTarget:
    """Makes what a kind of sink writes to, and starts its server if it has one."""
    from tests.targets import Target

    return lambda kind: Target(kind, request, tmp_path)


@pytest.fixture
def hdfs_folder(hdfs_root: str) -> str:
    """A new folder of HDFS."""
    return f"{hdfs_root}/{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def broker(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Kafka, which the session can read and write from now on."""
    from millrace.spark.kafka import add_connector
    from millrace_lab.servers import kafka

    add_connector(spark, kafka.connector())
    with kafka.kafka(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture
def network() -> Iterator[Proxy]:
    """The way to S3, which a test may disturb."""
    S3.reset()
    yield S3
    S3.reset()


@pytest.fixture
def moto_bucket(moto_port: int, network: Proxy) -> str:
    """A new bucket on moto's server."""
    return _bucket(network, moto_port)


@pytest.fixture
def minio_bucket(minio_port: int, network: Proxy) -> str:
    """A new bucket on MinIO."""
    return _bucket(network, minio_port)


def _bucket(network: Proxy, port: int) -> str:
    network.target = ("127.0.0.1", port)
    name = f"tests-{uuid.uuid4().hex[:12]}"
    s3.make_bucket(network.endpoint, name)
    return f"s3://{name}"
