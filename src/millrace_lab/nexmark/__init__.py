"""NEXMark: people, their auctions and the bids on them; queries as programs on Millrace.

`generator` makes the events, `queries` has the programs, each beside the same query in DuckDB, and
`checking` runs a program over files and compares what it gives with a batch.
"""
