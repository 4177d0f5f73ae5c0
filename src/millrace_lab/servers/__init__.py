"""Real servers for tests and benchmarks, on loopback, each on a port and in a folder of its own.

Each module starts one kind of server as a context manager, and has what a client of it needs to
prepare a run. `make servers` installs what pip does not; a server that is not installed raises
`ServerMissingError`, which says how to get it.
"""

from millrace_lab.servers.places import ServerMissingError, free_port, installed, is_open
from millrace_lab.servers.running import ServerFailedError

__all__ = ["ServerFailedError", "ServerMissingError", "free_port", "installed", "is_open"]
