"""HDFS: a NameNode and a DataNode in one process, which `make servers` downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from millrace.errors import MillraceError
from millrace.log.store.retries import Retries
from millrace.log.store.webhdfs import WebHdfsStore
from millrace_lab.servers.places import free_port, installed
from millrace_lab.servers.running import running


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """The URL of a folder of HDFS that is there meanwhile."""
    jars = installed("hdfs/complete").parent
    port = free_port()
    java = os.path.join(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")
    classes = f"{jars}/*:{Path(pyspark.__file__).parent}/jars/*"
    command = [java, "-Xmx512m", f"-Dtest.build.data={folder}", "-cp", classes]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    command += ["-nnport", str(free_port()), "-httpport", str(port)]
    url = f"webhdfs://127.0.0.1:{port}/tests"

    store = WebHdfsStore(url, Retries(total=0.1, request=10))

    def is_ready() -> bool:
        # A NameNode listens before it has a DataNode to write to.
        try:
            store.put("ready", b"yes")
        except MillraceError:
            return False
        return True

    with running(command, folder / "hdfs.log", is_ready, {"HADOOP_HOME": str(folder)}):
        yield url
