"""The example of state in Redis as its page has it, as a program that the tests kill.

    python -m tests.faults.balances INPUT LOCATION REDIS

It processes all files of the folder, one an epoch.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.conftest import ROOT
from tests.faults import driver
from tests.spark.test_docs import python_blocks

import millrace as mr

SCHEMA = "account string, cents long"


def processor(url: str) -> Any:
    """The processor of the page's first block."""
    names: dict[str, Any] = {"__name__": "docs"}
    exec(python_blocks(ROOT / "docs" / "state-engines.md")[0].body, names)
    return names["Balances"](url)


def main() -> None:
    folder, location, url = sys.argv[1:]
    spark = driver.session()
    payments = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(folder)
    balances = (
        mr.stream(payments)
        .key_by("account")
        .process(processor(url), output="account string, balance long", name="balances")
    )
    query = balances.to("noop").start(location, parallelism=2)
    try:
        query.process_all_available()
    finally:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
