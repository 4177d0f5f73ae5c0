"""Latency timelines as pictures: a PNG, and an HTML page on its own.

A run is {"points": [[seconds, least, mean, largest latency], ...], "moves": [[from, to], ...]}, and
may have "shards": [[seconds, how many from then on], ...].
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 150, 70, 26, 26
LINE, BAND, MOVE, SHARDS = "#1f5fa8", "#9dc1e8", "#f3d9a4", "#b0413e"

Series = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Words:
    """What a picture says about itself."""

    heading: str = "Latency by event"
    about: str = (
        "Seconds from an event's making to the commit of its epoch; the line is the mean of an "
        "epoch, the band its least and largest. Shaded: from the request to rescale to its end. "
        "Same scale everywhere."
    )
    axis: str = "seconds since the first request; shaded while it moves"


LATENCY = Words()


def write(
    series: Series, title: str, folder: Path, stem: str, words: Words = LATENCY
) -> list[Path]:
    """Write the pictures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{stem}.html"
    page.write_text(as_html(series, title, words))
    picture = folder / f"{stem}.png"
    _write_png(series, title, picture, words)
    return [page, picture]


def _highest(series: Series) -> float:
    return float(max((p[3] for run in series.values() for p in run["points"]), default=1.0))


def as_html(series: Series, title: str, words: Words = LATENCY) -> str:
    """A page with one chart per run, on one scale of latency: logarithmic, from 0.1 s."""
    top = 10 ** math.ceil(math.log10(max(_highest(series), 1.0) * 1.01))
    charts = "\n".join(_chart(name, run, top) for name, run in series.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 24px; color: #222; background: #fff; }}
h1 {{ font-size: 18px; }} h2 {{ font-size: 14px; margin: 14px 0 2px; }}
svg text {{ font: 11px system-ui, sans-serif; fill: #555; }}
</style></head><body>
<h1>{html.escape(words.heading)}: {html.escape(title)}</h1>
<p>{html.escape(words.about, quote=False)}</p>
{charts}
</body></html>
"""


def _chart(name: str, run: Mapping[str, Any], top: float) -> str:
    points = run["points"]
    begin, end = float(points[0][0]), float(points[-1][0])
    bottom = 0.1

    def x(seconds: float) -> float:
        return LEFT + (seconds - begin) / max(end - begin, 1e-9) * (WIDTH - LEFT - 10)

    def y_of(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    def y(latency: float) -> float:
        return y_of(math.log10(max(latency, bottom) / bottom) / math.log10(top / bottom))

    parts = []
    for since, until in run["moves"]:
        parts.append(
            f'<rect x="{x(since):.1f}" y="{TOP}" width="{max(x(until) - x(since), 1):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}" fill="{MOVE}"/>'
        )
    tick = bottom
    while tick <= top * 1.001:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">'
            f"{tick:g} s</text>"
        )
        tick *= 10
    upper = [f"{x(p[0]):.1f},{y(p[3]):.1f}" for p in points]
    lower = [f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in reversed(points)]
    mean = [f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in points]
    parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{BAND}" opacity="0.6"/>')
    parts.append(
        f'<polyline points="{" ".join(mean)}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'
    )
    shards = _shards(run, begin, end)
    if shards:
        most = max(number for _, number in shards)
        corners = [f"{x(at):.1f},{y_of(number / most):.1f}" for at, number in shards]
        parts.append(
            f'<path d="M{" L".join(corners)}" fill="none" stroke="{SHARDS}" stroke-width="1.2"/>'
            f'<text x="{WIDTH - 8}" y="{y_of(1.0) - 4:.1f}" text-anchor="end" '
            f'style="fill:{SHARDS}">shards, up to {most}</text>'
        )
    step = _step(end - begin)
    mark = math.ceil(begin / step) * step
    while mark <= end:
        parts.append(
            f'<text x="{x(mark):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{mark:g} s</text>'
        )
        mark += step
    return (
        f'<h2>{html.escape(name)}</h2>\n<svg width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
    )


def _shards(run: Mapping[str, Any], begin: float, end: float) -> list[tuple[float, int]]:
    """The corners of a line of steps within the chart; none if the run does not tell."""
    corners: list[tuple[float, int]] = []
    for at, number in run.get("shards", []):
        place = min(max(float(at), begin), end)
        # Up to the change it was another number.
        corners += [(place, corners[-1][1])] if corners else []
        corners.append((place, int(number)))
    return [*corners, (end, corners[-1][1])] if corners else []


def _step(span: float) -> float:
    return next((s for s in (1, 2, 5, 10, 20, 50, 100) if span / s <= 12), 200)


def _write_png(series: Series, title: str, path: Path, words: Words) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(series), 1, figsize=(9, 1.6 * len(series) + 0.8), sharey=True, squeeze=False
    )
    for axis, (name, run) in zip(axes[:, 0], series.items(), strict=True):
        seconds, least, mean, largest = zip(*run["points"], strict=True)
        for since, until in run["moves"]:
            axis.axvspan(since, until, color=MOVE)
        axis.fill_between(seconds, least, largest, color=BAND, alpha=0.6, linewidth=0)
        axis.plot(seconds, mean, color=LINE, linewidth=1.3)
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
        axis.set_ylabel(f"{name}\nlatency, s", fontsize=8)
        axis.tick_params(labelsize=8)
        shards = _shards(run, seconds[0], seconds[-1])
        if shards:
            beside = axis.twinx()
            beside.plot(*zip(*shards, strict=True), color=SHARDS, linewidth=1.1)
            beside.set_ylim(0, max(number for _, number in shards) + 0.5)
            beside.set_ylabel("shards", fontsize=8, color=SHARDS)
            beside.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel(words.axis, fontsize=8)
    figure.suptitle(f"{words.heading}: {title}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
