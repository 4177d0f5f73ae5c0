"""Versions that Millrace does not run on, and sessions it cannot use, without starting Spark."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pandas
import pyspark
import pytest

import millrace as mr
from millrace.errors import SessionError, UnsupportedVersionError
from millrace.spark.session import (
    SETTINGS,
    STORE_SETTINGS,
    check_session,
    check_versions,
    executor_environment,
)


def test_the_installed_versions_are_fine() -> None:
    check_versions()


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "4.2.9", "5.0.0", "5.0.0.dev1", "10.1.0"])
def test_a_pyspark_that_is_too_old_or_too_new(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(
        UnsupportedVersionError, match=rf"PySpark {version}.*pip install 'pyspark>=4.3"
    ):
        check_versions()
    # The check comes before anything is started.
    with pytest.raises(UnsupportedVersionError):
        mr.session("never", master="local[1]")


@pytest.mark.parametrize("version", ["4.3.0", "4.3.0rc1", "4.10.2", "4.4.0.dev0"])
def test_a_pyspark_that_is_fine(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_versions()


@pytest.mark.parametrize("version", ["3.0.0", "3.0.0rc0", "4.1.2"])
def test_a_pandas_that_pyspark_cannot_use(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pandas, "__version__", version)
    with pytest.raises(UnsupportedVersionError, match=rf"pandas {version}.*pip install 'pandas"):
        check_versions()


def test_a_spark_connect_session_is_refused() -> None:
    with pytest.raises(SessionError, match=r"Spark Connect session.*mr.session"):
        check_session(SimpleNamespace())  # type: ignore[arg-type]


def fake(stopped: bool, conf: dict[str, str]) -> Any:
    """As much of a session as the check looks at; the real one is in tests/spark."""
    context = SimpleNamespace(isStopped=lambda: stopped)
    return SimpleNamespace(
        _jsparkSession=object(),
        _jsc=SimpleNamespace(sc=lambda: context),
        sparkContext=SimpleNamespace(getConf=lambda: conf),
    )


def test_a_stopped_session_is_refused() -> None:
    with pytest.raises(SessionError, match=r"stopped. Make a new one with mr.session"):
        check_session(fake(True, {}))


def test_a_session_that_lacks_settings_is_used_with_a_warning() -> None:
    good = {key: value for key, (value, _) in SETTINGS.items()}
    assert check_session(fake(False, good)) == []
    for key, (value, reason) in SETTINGS.items():
        with pytest.warns(UserWarning, match="set before the session starts") as caught:
            assert check_session(fake(False, good | {key: "something else"})) == [key]
        assert f"{key}={value} ({reason})" in str(caught[0].message)


def test_executors_reach_the_store_and_secrets_are_hidden() -> None:
    """Every variable that holds a secret has a name that the pattern for secrets finds."""
    secrets = [
        name
        for name in STORE_SETTINGS
        if any(word in name for word in ("SECRET", "TOKEN", "SAS", "ACCOUNT_KEY"))
    ]
    assert len(secrets) > 4
    for name in secrets:
        found = executor_environment({name: "x", "HOME": "/root"})
        assert found.pop(f"spark.executorEnv.{name}") == "x"
        pattern = found.pop("spark.redaction.regex", "(?i)secret|password|token|access[.]?key")
        assert re.search(pattern, f"spark.executorEnv.{name}"), name
        assert found == {}
