"""Windows of event time: aggregates per key and pane, emitted by window, evicted by watermark."""
