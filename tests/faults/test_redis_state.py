"""State of one's own in Redis: an epoch that runs again, whoever was killed, adds nothing twice."""

from __future__ import annotations

import json
import random
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest
from tests import processes

import millrace as mr
from millrace import hooks
from millrace_lab.faults import crashes

pytestmark = pytest.mark.stress

EPOCHS = 3
ACCOUNTS = 40


@pytest.mark.parametrize(
    "crash", [f"{hooks.AFTER_SEGMENT}@2", f"{hooks.AFTER_SEGMENT}@2:worker"], ids=str
)
def test_every_payment_counts_once(tmp_path: Path, redis_server: str, crash: str) -> None:
    from redis import Redis

    rng, inbox = random.Random(5), tmp_path / "in"
    inbox.mkdir()
    # Other tests may have used the server.
    prefix = uuid.uuid4().hex[:8]
    total: Counter[str] = Counter()
    rows = 0
    for epoch in range(EPOCHS):
        lines = []
        for _ in range(200):
            account, cents = f"{prefix}-{rng.randrange(ACCOUNTS)}", rng.randint(-500, 500)
            total[account] += cents
            rows += 1
            lines.append(json.dumps({"account": account, "cents": cents}))
        (inbox / f"{epoch}.json").write_text("\n".join(lines))
    arguments = (inbox, tmp_path / "location", redis_server)
    codes = []
    for environment in (crashes.environment(crash, tmp_path), {}):
        program = processes.start(
            "tests.faults.balances", *arguments, log=tmp_path / "log", **environment
        )
        codes.append(program.wait())
        program.assert_nobody_survives()
    # A local Spark gives a task one try: the query fails, and its next life repeats the epoch.
    first = 1 if crash.endswith(":worker") else -signal.SIGKILL
    assert codes == [first, 0], program.output()
    with Redis.from_url(redis_server, decode_responses=True) as client:
        found = {name: int(client.hget(f"account:{name}", "balance") or 0) for name in total}
        repeated = {client.hget(f"account:{name}", "epoch") for name in total}
    assert found == dict(total)
    assert repeated <= {"1", "2", "3"}
    with mr.open(str(tmp_path / "location")) as state:
        counted = state.to_arrow("balances").column("payments").to_pylist()
        assert (state.epoch, sum(counted)) == (EPOCHS, rows)
