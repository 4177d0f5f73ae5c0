"""Mirrors: an operator's state in another store, which follows the log epoch by epoch.

`contract` says what a store has to do, `rocksdb`, `redis` and `postgres` each do it, and `mirror`
brings one of them from the epoch it shows to the newest.
"""
