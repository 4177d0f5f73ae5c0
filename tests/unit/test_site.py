"""The documentation builds as a site, without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    made = subprocess.run(
        [*build, "-d", str(tmp_path / "trees"), str(ROOT / "docs"), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    index = (out / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (out / f"{page.stem}.html").exists()
        assert f'href="{page.stem}.html"' in index or page.stem == "index"
    assert "images/epoch.svg" in (out / "concepts.html").read_text().replace("_images", "images")
