"""Prometheus from Debian's package, on loopback, which scrapes one page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_lab.servers.places import ServerMissingError, free_port, is_open
from millrace_lab.servers.running import running


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The URL of a server that scrapes `host:port` every second meanwhile."""
    program = shutil.which("prometheus")
    if program is None:
        raise ServerMissingError("Prometheus is not installed: run make servers")
    port = free_port()
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "millrace", "static_configs": [{"targets": [target]}]}],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    command = [program, f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'data'}"]
    with running(command, folder / "prometheus.log", lambda: is_open(port)):
        yield f"http://127.0.0.1:{port}"
