"""Real servers that tests talk to, all on loopback, each on a port of its own.

The endpoint of every S3 test is a proxy in this process, whose port is known before Spark starts.
Behind it stands whichever server the test asked for.
"""
