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
