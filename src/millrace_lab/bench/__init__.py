"""Benchmarks: Millrace beside Spark, outputs compared before times.

`millrace bench NAME --json FILE` runs one and writes what `_contract.Result` says.
"""

from millrace_lab.bench._contract import Bar, BenchmarkError, Result

__all__ = ["Bar", "BenchmarkError", "Result"]
