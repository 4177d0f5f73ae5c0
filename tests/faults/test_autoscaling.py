"""A query that scales itself on real executors stays exact, and says why it did what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.moving import EXECUTORS
from tests.faults.test_moving import result_of

CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"


@pytest.mark.stress
@pytest.mark.cluster
def test_a_load_that_steps_up_and_down_is_followed(tmp_path: Path) -> None:
    result = result_of(tmp_path, "tests.faults.autoscaled", CLUSTER)
    assert result["shards"] == [1, 3, 1], result
    changes: list[dict[str, Any]] = [d for d in result["decisions"] if d["action"] == "rescale"]
    assert changes[0]["before"] == {"summed": 1}, result
    assert {"summed": 1} in [change["parallelism"] for change in changes], result
    for change in changes:
        assert change["reason"], change
        assert change["numbers"]["load"] > 0, change
        # Nobody knows how many files wait.
        assert "backlog_rows" not in change["numbers"], change
    # 900 rows a second at 2 ms are more than two shards do.
    grown = [change for change in changes if change["parallelism"]["summed"] == 3]
    assert grown, result
    assert "autoscaling by model: on, 1 to 3 shards" in result["explained"]
    assert any("load" in mark["detail"] for mark in result["marks"]), result["marks"]
