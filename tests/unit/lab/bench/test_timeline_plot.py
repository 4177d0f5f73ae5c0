"""The page with the timelines."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from millrace_lab.bench import _timeline_plot

SERIES = {
    "live": {"points": [[-2.0, 0.2, 0.5, 1.1], [0.5, 0.2, 0.6, 1.2]], "moves": [[0.0, 0.4]]},
    "a<b": {"points": [[-2.0, 0.2, 0.5, 1.1], [90.0, 1.0, 40.0, 95.0]], "moves": []},
}


def test_a_page_has_a_chart_per_run(tmp_path: Path) -> None:
    page, picture = _timeline_plot.write(SERIES, "5m keys", tmp_path / "images", "rescale")
    assert picture.name == "rescale.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert page.name == "rescale.html"
    body = text[text.index("<body>") : text.index("</html>")]
    charts = ElementTree.fromstring(body).findall("svg")
    assert [len(chart.findall("rect")) for chart in charts] == [1, 0]
    assert "a&lt;b" in text
    assert "src=" not in text
    assert "href=" not in text


def test_all_points_are_inside_the_chart() -> None:
    text = _timeline_plot.as_html(SERIES, "")
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")])
    for chart in body.findall("svg"):
        (line,) = chart.findall("polyline")
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert _timeline_plot.LEFT <= x <= _timeline_plot.WIDTH
            assert _timeline_plot.TOP <= y <= _timeline_plot.HEIGHT - _timeline_plot.BOTTOM


def test_shards_are_a_line_of_steps(tmp_path: Path) -> None:
    run = {**SERIES["a<b"], "shards": [[-5.0, 1], [10.0, 3], [20.0, 2]]}
    words = _timeline_plot.Words(heading="Response time", about="a < b & c", axis="seconds")
    page, picture = _timeline_plot.write({"growing": run}, "a road", tmp_path, "road", words)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")])
    assert [body.findtext("h1"), body.findtext("p")] == ["Response time: a road", "a < b & c"]
    (chart,) = body.findall("svg")
    (line,) = chart.findall("path")
    corners = [tuple(map(float, c.split(","))) for c in line.attrib["d"][1:].split(" L")]
    assert corners[0][0] == _timeline_plot.LEFT
    heights = [y for _, y in corners]
    # One, then three, then two, up to the end of the chart.
    assert heights[0] == heights[1] > heights[4] == heights[5] > heights[2] == heights[3]
    assert all(x <= _timeline_plot.WIDTH for x, _ in corners)
