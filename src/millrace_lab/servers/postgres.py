"""PostgreSQL from Debian's package, on loopback, with a port and a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_lab.servers.places import ServerMissingError, free_port
from millrace_lab.servers.running import running

USER, PASSWORD = "tests", "not-a-secret"


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise ServerMissingError("PostgreSQL is not installed: run make servers")
    return found[-1].parent


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server that runs meanwhile, without a database's name."""
    programs, port = _programs(), free_port()
    # Not below pytest's folder, which only its owner may enter: PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    prefix: list[str] = []
    (folder / "password").write_text(PASSWORD)
    if os.geteuid() == 0:
        prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        for path in (folder, folder / "password"):
            shutil.chown(path, "nobody", "nogroup")
    try:
        command = [*prefix, str(programs / "initdb"), "--pgdata", str(folder / "data")]
        command += ["--auth=scram-sha-256", f"--username={USER}", "--encoding=UTF8"]
        command += [f"--pwfile={folder / 'password'}", "--no-sync", "--locale=C.UTF-8"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        command = [*prefix, str(programs / "postgres"), "-D", str(folder / "data")]
        command += ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-c", "fsync=off"]
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        log = folder / "postgres.log"
        with running(
            command, log, lambda: subprocess.run(ready).returncode == 0, stop=signal.SIGINT
        ):
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}"
    finally:
        shutil.rmtree(folder)


def new_database(server: str, name: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"{server}/{name}"
