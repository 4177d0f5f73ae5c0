"""Epochs with rows of some keys and times, delays and steps of both clocks."""

from __future__ import annotations

from hypothesis import strategies as st

from millrace.operators.window.emission import EARLY, FINAL, UPDATE, Emission

SECOND = 1_000_000
START = 1_000 * SECOND

EMISSIONS = st.sampled_from([Emission(FINAL), Emission(UPDATE), Emission(EARLY, 5 * SECOND)])
# Whole seconds, so that bounds are met.
TIMES = st.none() | st.integers(0, 25).map(lambda seconds: START + seconds * SECOND)
ROW = st.tuples(
    st.none() | st.sampled_from(["a", "b", "c", ""]), TIMES, st.none() | st.integers(-99, 99)
)
PARTITION = st.lists(ROW, max_size=10)
EPOCH = st.tuples(
    st.lists(PARTITION, max_size=2),
    # The watermark's step, which often ends at the end of a window.
    st.sampled_from([0, 1, 2, 5, 10, 10, 17]).map(lambda seconds: seconds * SECOND),
    st.integers(0, 4).map(lambda seconds: seconds * SECOND),  # The clock's.
)
