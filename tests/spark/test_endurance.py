"""Small epochs with everything open that can be: no number of files or handles rises with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millrace.log.collector import COLLECT_EVERY
from millrace.log.journal import FULL_EVERY
from millrace_lab.bench import endurance
from millrace_lab.bench._console import steps

EPOCHS = 140
HANDLES = 8
"""How many threads or descriptors may come and go between two samples."""


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_nothing_rises_with_the_epochs(spark: SparkSession, tmp_path: Path) -> None:
    options = endurance.Options(epochs=EPOCHS, rows=100, keys=1000, sample_every=5, retain_epochs=2)
    with endurance.cache_folder(tmp_path / "cache"), steps(Console(quiet=True), "test") as shown:
        run = endurance.Endurance(spark, options, tmp_path, shown)
        result = run.run()
    assert result.differences == []
    samples = run.samples
    assert len(samples) >= 8
    for role in ("driver", "jvm", "workers", "serve"):
        assert samples[0][f"{role}.anon_mb"] > 0, f"no {role} was found"

    def most(name: str, part: list[endurance.Sample]) -> float:
        return max(sample.get(name, 0) for sample in part)

    early, late = samples[len(samples) // 4 : len(samples) // 2], samples[len(samples) * 3 // 4 :]
    # Pools of Spark's in the JVM grow to their own bounds, in their own time.
    for name in ("driver.fds", "driver.threads", "serve.fds", "serve.threads", "workers.fds"):
        assert most(name, late) <= most(name, early) + HANDLES, name
    # What is retained, back to a full manifest, for the query and for the reader that stays.
    manifests = options.retain_epochs + 2 * FULL_EVERY + 2 * COLLECT_EVERY
    assert most("files.manifests", late) <= manifests < EPOCHS
    assert most("files.leases", late) <= 6
    assert most("files.views", late) <= 6
    assert most("files..", late) <= 2
