"""What Spark did, from its event log."""

from __future__ import annotations

import json
from pathlib import Path

from millrace_lab.soak.events import tally


def task(reason: str, speculative: bool = False, description: str = "") -> str:
    event = {
        "Event": "SparkListenerTaskEnd",
        "Task End Reason": {"Reason": reason, "Description": description},
        "Task Info": {"Speculative": speculative},
    }
    return json.dumps(event, separators=(",", ":"))


def test_tasks_and_stages_are_counted(tmp_path: Path) -> None:
    stages = [
        {"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage Attempt ID": attempt}}
        for attempt in (0, 1, 2)
    ]
    lines = [
        task("Success"),
        task("Success", speculative=True),
        task("FetchFailed"),
        task("ExceptionFailure", description="cannot read x: an injected fault"),
        *(json.dumps(stage, separators=(",", ":")) for stage in stages),
        task("Success")[:-30],
    ]
    (tmp_path / "app.inprogress").write_text("\n".join(lines))
    assert tally(tmp_path) == {
        "tasks": 4,
        "speculative tasks": 1,
        "tasks failed: shuffle output lost": 1,
        "tasks failed: an error": 1,
        "tasks failed by an injected fault of the store": 1,
        "stages run again": 2,
    }
    assert not tally(tmp_path / "nothing")
