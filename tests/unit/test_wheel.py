"""What users install: the product with all its files, and nothing of the lab."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import ROOT


def test_the_wheel_is_the_product_alone(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("millrace-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.partition("/")[0] for name in names} - {"millrace"}
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        metadata = archive.read(f"{info}/METADATA").decode()
    assert info.endswith(".dist-info")
    assert entry_points.split() == ["[console_scripts]", "millrace", "=", "millrace.cli:main"]
    assert "Provides-Extra: bench" not in metadata
    assert "millrace/py.typed" in names
    source = ROOT / "src" / "millrace"
    for ending in (".py", ".java", ".html", ".css", ".js"):
        files = [path.relative_to(source.parent) for path in source.rglob(f"*{ending}")]
        assert files, ending
        assert {str(path) for path in files} <= names
