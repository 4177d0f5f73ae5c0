"""Real time: the same shards, at milliseconds, in long-lived tasks of Spark's real-time trigger.

A plan is made once and stays (`plan`), its tasks hand rows to resident Python processes and take
answers back (`worker`, `frames`), and a sink of our own commits the epoch (`run`).
"""
