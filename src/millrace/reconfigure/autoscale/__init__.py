"""Autoscaling: from what epochs report to how many shards each operator should have, and why.

    observing    what one epoch showed
    history      the recent past, and how long it has been as it is
    estimate     what a row costs, what an epoch costs, and what either would cost elsewhere
    policies     how many shards a rule wants
    deciding     whether that is worth a move now
    recording    observations and decisions as files of the location
    scaler       the thread that does all this for a running query

All but the last two are pure: a history in, a decision out, no clock, no cluster. So the simulator,
`millrace autoscale --replay` and a running query take the same decisions from the same past.
"""
