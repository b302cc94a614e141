"""A host's worker process: Monarch's worker loop, on one address, for one run.

Run as ``python -m art.distributed.worker_process --parent PID --host ADDRESS --port PORT --report FD``. Port
0 lets it choose one. It writes its address, or what failed, as one line to the descriptor FD before it
listens. It ends with its parent, and all actor processes of the host are its children and end with it.
"""

import argparse
import errno
import os
import socket
import sys

from art.distributed.monarch_notice import drop_notice
from art.distributed.processes import PARENT_VARIABLE, end_with_parent

FAILED = "failed: "


def authority(host: str, port: int) -> str:
    """``host:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str, port: int) -> int:
    """``port``, or one that the kernel chooses when it is 0.

    Raises:
        OSError: somebody listens on it, or ``host`` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def main() -> None:
    """Serves until the host mesh shuts the worker down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--report", type=int, required=True)
    options = parser.parse_args()
    end_with_parent(options.parent)
    os.environ[PARENT_VARIABLE] = str(os.getpid())

    from monarch.actor import run_worker_loop_until_shutdown

    try:
        address = f"tcp://{authority(options.host, free_port(options.host, options.port))}"
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        os.write(options.report, f"{FAILED}port {options.port} of {options.host} {reason}\n".encode())
        sys.exit(1)
    os.write(options.report, f"{address}\n".encode())
    os.close(options.report)
    drop_notice()
    run_worker_loop_until_shutdown(address=address, ca="trust_all_connections")


if __name__ == "__main__":
    main()
