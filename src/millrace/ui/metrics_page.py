"""The documentation of the metrics: `python -m millrace.ui.metrics_page > docs/metrics.md`."""

from __future__ import annotations

from millrace.ui.histogram import BUCKETS
from millrace.ui.metrics import METRICS

INTRODUCTION = """# Metrics

<!-- made by python -m millrace.ui.metrics_page; do not edit -->

[The live page](page.md) serves these figures at `/metrics`, in the text format of
[Prometheus](https://prometheus.io). Counters and histograms begin when the serving process begins
to watch the location, with the epochs that are retained there.
[A dashboard](../deploy/grafana/millrace.json) shows them in Grafana.

    scrape_configs:
      - job_name: millrace
        static_configs:
          - targets: ["127.0.0.1:4300"]

`time() - millrace_last_commit_timestamp_seconds` is the time since the last commit. Make it your
first alert. `histogram_quantile(0.99, rate(millrace_event_latency_seconds_bucket[5m]))` is what to
compare with the `latency` of [autoscaling](autoscaling.md).

| metric | type | labels | meaning |
| --- | --- | --- | --- |
"""


def markdown() -> str:
    """The page of the documentation about metrics."""
    rows = [
        f"| `{name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |"
        for name, m in METRICS.items()
    ]
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS)
    return INTRODUCTION + "\n".join(rows) + f"\n\nHistograms have the bounds {bounds} seconds.\n"


if __name__ == "__main__":
    print(markdown(), end="")
