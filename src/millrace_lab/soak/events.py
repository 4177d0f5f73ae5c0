"""What Spark did about the faults, from the event logs of a life: tasks that failed and why, stages
that ran again, copies of slow tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

REASONS = {
    "ExceptionFailure": "tasks failed: an error",
    "ExecutorLostFailure": "tasks failed: executor lost",
    "FetchFailed": "tasks failed: shuffle output lost",
    "TaskKilled": "tasks ended: another copy was faster",
}


def event_log(folder: Path) -> dict[str, str]:
    """Settings of a session that writes its event log into a folder, as `tally` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def tally(folder: Path) -> Counter[str]:
    """Counts by what happened."""
    found: Counter[str] = Counter()
    for path in folder.iterdir() if folder.exists() else []:
        with path.open(errors="replace") as lines:
            for line in lines:
                # A killed driver leaves half a line.
                if line.endswith("}\n") and '"Event":"SparkListener' in line[:40]:
                    _count(line, found)
    return found


def _count(line: str, found: Counter[str]) -> None:
    if line.startswith('{"Event":"SparkListenerTaskEnd"'):
        event = json.loads(line)
        found["tasks"] += 1
        found["speculative tasks"] += bool(event["Task Info"]["Speculative"])
        reason = event["Task End Reason"]["Reason"]
        if reason in REASONS:
            found[REASONS[reason]] += 1
        if "an injected fault" in event["Task End Reason"].get("Description", ""):
            found["tasks failed by an injected fault of the store"] += 1
    elif line.startswith('{"Event":"SparkListenerStageSubmitted"'):
        found["stages run again"] += json.loads(line)["Stage Info"]["Stage Attempt ID"] > 0
    elif line.startswith('{"Event":"SparkListenerExecutorRemoved"'):
        found["executors replaced"] += 1
