"""The central act: open replicas at version v, apply rows, write segments, commit v + 1.

Without a Spark session. Spark's tasks, the test harness, the simulator, the benchmarks and the
rehearsal of kernels all call this one implementation.
"""
