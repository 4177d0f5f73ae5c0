"""S3: moto's server, which pip installs, and MinIO, which `make servers` builds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_lab.servers.places import FOLDER, free_port, installed, is_open
from millrace_lab.servers.running import running

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "millrace-tests", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}


def environment(endpoint: str) -> dict[str, str]:
    """What a process needs to reach the server at an endpoint."""
    return {**CREDENTIALS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}


@contextmanager
def moto(folder: Path) -> Iterator[int]:
    """The port of a moto server that runs meanwhile."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, folder / "moto.log", lambda: is_open(port)):
        yield port


def has_minio() -> bool:
    """Whether MinIO is installed."""
    return (FOLDER / "minio").exists()


@contextmanager
def minio(folder: Path) -> Iterator[int]:
    """The port of a MinIO server that runs meanwhile, on a folder."""
    program = installed("minio")
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


def make_bucket(endpoint: str, name: str) -> None:
    """A new bucket on the server at an endpoint."""
    import boto3  # type: ignore[import-untyped]

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=name)
