"""Pictures made of results, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millrace_lab.bench.report import BACKEND_MEASURES, MEASURES, Results, _kinds_and_sizes

COLOURS = ("#9ecae1", "#3182bd", "#08306b", "#fdae6b")
ENGINE_COLOURS = {
    "millrace": "#3182bd",
    "millrace_table": "#08306b",
    "dict": "#bdbdbd",
    "rocksdb": "#fdae6b",
    "redis": "#de2d26",
    "spark_store": "#74c476",
}
PEER_COLOURS = {
    "millrace": "#08306b",
    "millrace_compat": "#3182bd",
    "pyspark_row": "#fd8d3c",
    "pyspark_pandas": "#fdbe85",
}


def draw(results: Results, folder: Path) -> list[str]:
    """Draw every picture there are results for; returns the files' names."""
    drawers = {"state-types": _state_types, "python": _python, "backends": _backends}
    wanted = {n: draw for n, draw in drawers.items() if n in results and results[n]["figures"]}
    if not wanted:
        return []
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in wanted.items():
        picture(results[name], folder / f"{name}.png")
    return [f"{name}.png" for name in wanted]


def _state_types(result: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figures = result["figures"]
    kinds, sizes = _kinds_and_sizes(figures, next(iter(MEASURES)))
    measures = [m for m in MEASURES if any(n.startswith(f"{m}.") for n in figures)]
    figure, axes = pyplot.subplots(-(-len(measures) // 2), 2, figsize=(11, 12))
    for axis, measure in zip(axes.flat, measures, strict=False):
        width = 0.8 / len(sizes)
        for n, size in enumerate(sizes):
            places = [k + (n - (len(sizes) - 1) / 2) * width for k in range(len(kinds))]
            heights = [figures[f"{measure}.{kind}.{size}"] for kind in kinds]
            colour = COLOURS[n % len(COLOURS)]
            axis.bar(places, heights, width, label=f"{size} keys", color=colour)
        axis.set_yscale("log")
        axis.set_ylim(bottom=_decade(figures[f"{measure}.{k}.{s}"] for k in kinds for s in sizes))
        axis.set_title(MEASURES[measure][0], fontsize=10)
        axis.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right", fontsize=8)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    axes.flat[0].legend(fontsize=8)
    _save(figure, path)


def _backends(result: Mapping[str, Any], path: Path) -> None:
    """A panel per operation: kinds and sizes side by side, a bar per engine."""
    from matplotlib import pyplot

    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in result["figures"].items():
        measure, _, rest = name.partition(".")
        if measure in BACKEND_MEASURES:
            engine, _, cell = rest.partition(".")
            found.setdefault(measure, {}).setdefault(engine, {})[cell] = value
    figure, axes = pyplot.subplots(-(-len(found) // 2), 2, figsize=(13, 3.1 * -(-len(found) // 2)))
    for axis, (measure, engines) in zip(axes.flat, found.items(), strict=False):
        cells = list(dict.fromkeys(cell for by_cell in engines.values() for cell in by_cell))
        width = 0.8 / len(engines)
        for number, (engine, by_cell) in enumerate(engines.items()):
            shift = (number - (len(engines) - 1) / 2) * width
            places = [cells.index(cell) + shift for cell in by_cell]
            colour = ENGINE_COLOURS.get(engine, "#999999")
            axis.bar(places, list(by_cell.values()), width, label=engine, color=colour)
        axis.set_yscale("log")
        axis.set_ylim(bottom=_decade(v for by_cell in engines.values() for v in by_cell.values()))
        axis.set_title(BACKEND_MEASURES[measure], fontsize=10)
        axis.set_xticks(range(len(cells)), cells, rotation=30, ha="right", fontsize=8)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    axes.flat[0].legend(fontsize=8)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    _save(figure, path)


def _python(result: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    rates: dict[str, dict[str, float]] = {}
    for name, value in result["figures"].items():
        if name.startswith("rows_per_s."):
            _, side, program, _ = name.split(".")
            # A side's largest epochs come first.
            rates.setdefault(program, {}).setdefault(side, value)
    figure, axes = pyplot.subplots(1, len(rates), figsize=(9, 2.8), squeeze=False)
    for axis, (program, by_side) in zip(axes.flat, rates.items(), strict=True):
        sides = list(by_side)[::-1]
        colours = [PEER_COLOURS.get(side, "#999999") for side in sides]
        bars = axis.barh(sides, [by_side[side] for side in sides], color=colours)
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=3)
        axis.set_xscale("log")
        axis.set_xlim(left=_decade(by_side.values()))
        axis.margins(x=0.25)
        axis.set_title(f"{program}: rows per second", fontsize=10)
        axis.tick_params(labelsize=8)
    _save(figure, path)


def _decade(values: Iterable[float]) -> float:
    """The power of ten at or below the least of some values, where a logarithmic axis begins."""
    least = min((value for value in values if value > 0), default=1.0)
    return float(10 ** math.floor(math.log10(least)))


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    # Without a date in the file, the same results make the same picture.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
