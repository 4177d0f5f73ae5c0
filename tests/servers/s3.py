"""S3: moto's server, which pip installs, and MinIO, which `make servers` builds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.places import free_port, is_open, server
from tests.servers.proxy import S3
from tests.servers.running import running

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "millrace-tests", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
ENVIRONMENT = {**CREDENTIALS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": S3.endpoint}
"""What a process needs to reach the server behind the proxy."""


@contextmanager
def moto(folder: Path) -> Iterator[int]:
    """The port of a moto server that runs meanwhile."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, folder / "moto.log", lambda: is_open(port)):
        yield port


@contextmanager
def minio(folder: Path) -> Iterator[int]:
    """The port of a MinIO server that runs meanwhile, on a folder."""
    program = server("minio")
    port = free_port()
    command = [str(program), "server", str(folder / "data"), "--quiet"]
    command += ["--address", f"127.0.0.1:{port}", "--console-address", "127.0.0.1:0"]
    settings = {
        "MINIO_ROOT_USER": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "MINIO_ROOT_PASSWORD": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        "MINIO_UPDATE": "off",
    }
    with running(command, folder / "minio.log", lambda: is_open(port), settings):
        yield port


def make_bucket(name: str) -> None:
    """A bucket on the server behind the proxy."""
    import boto3

    client = boto3.client("s3", endpoint_url=S3.endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=name)
