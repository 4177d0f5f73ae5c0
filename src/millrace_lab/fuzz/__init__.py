"""Fuzzers for everything that Millrace reads from a location, and for its listeners.

    python -m millrace_lab.fuzz manifest --minutes 10 --seed 1

A *case* is a number. With the seed and the target it decides on one mutation of a small location
that the program wrote itself. The location is then read in every way there is. What was written
with other bytes under the old checksum must be refused, or not matter; what was sealed again, as
somebody who can write to the location would do it, must be refused or give rows that an epoch did
write. Refusals are errors of Millrace that name the file. All else is a *finding*: another
exception, a crash, a hang, memory without bound, other rows.

The targets `serve`, `flight` and `page` are listeners: a case is a request, see `listeners` and
`flights`.
"""
