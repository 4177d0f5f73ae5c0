from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from millrace_lab.bench import Bar, BenchmarkError, Result


def test_a_result_is_written_as_the_contract_says(tmp_path: Path) -> None:
    result = Result("some")
    assert result.figure("rows_per_s.a.100k", 123_456.7) == 123_456.7
    result.ratio("some.b", 12.34567)
    result.at_least("some.b", 12.34567, 10)
    result.at_most("some.c", 3.0, 2)
    path = tmp_path / "deep" / "some.json"
    result.write(path)
    written = json.loads(path.read_text())
    assert list(written) == [
        "name",
        "equal",
        "figures",
        "ratios",
        "bars",
        "machine",
        "versions",
        "date",
    ]
    assert written["name"] == "some"
    assert written["equal"] is True
    assert written["figures"] == {"rows_per_s.a.100k": 123_457}
    assert written["ratios"] == {"some.b": 12.35}
    assert written["bars"] == [
        {"name": "some.b", "value": 12.35, "target": 10, "ok": True},
        {"name": "some.c", "value": 3.0, "target": 2, "ok": False},
    ]
    assert {"cpu", "cores", "memory_gib", "load_at_start"} <= written["machine"].keys()
    assert {"millrace", "pyspark", "python", "java"} <= written["versions"].keys()
    assert written["date"].endswith("+00:00")


def test_unequal_outputs_decide_the_exit_code_and_a_missed_bar_does_not() -> None:
    result = Result("some")
    result.at_least("some.bar", 1.0, 30)
    assert result.bars == [Bar("some.bar", 1.0, 30, False)]
    assert result.exit_code == 0
    result.compare("these are the same", True)
    assert result.equal
    result.compare("this one differs", False)
    result.compare("these are the same again", True)
    assert not result.equal
    assert result.differences == ["this one differs"]
    assert result.exit_code == 1


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(BenchmarkError, match="too short to measure"):
        Result("some").figure("x", value)


@pytest.mark.parametrize(
    ("value", "kept"), [(0.0, 0), (0.00123456, 0.001235), (999.96, 1000.0), (1234.5, 1234)]
)
def test_four_digits_are_kept(value: float, kept: float) -> None:
    result = Result("some")
    result.figure("x", value)
    assert result.figures == {"x": kept}
