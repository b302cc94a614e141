"""A host's worker process: Monarch's worker loop, on one address, for one run.

Run as ``python -m art.distributed.worker_process --parent PID --host ADDRESS --port PORT --report FD``. Port
0 lets it choose one. It writes its address as one line to the descriptor FD before it listens. It ends with
its parent, and all actor processes of the host are its children and end with it.
"""

import argparse
import os
import socket

from art.distributed.monarch_notice import drop_notice
from art.distributed.processes import PARENT_VARIABLE, end_with_parent


def authority(host: str, port: int) -> str:
    """``host:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str) -> int:
    """A port of ``host`` that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
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

    port = options.port or free_port(options.host)
    address = f"tcp://{authority(options.host, port)}"
    os.write(options.report, f"{address}\n".encode())
    os.close(options.report)
    drop_notice()
    run_worker_loop_until_shutdown(address=address, ca="trust_all_connections")


if __name__ == "__main__":
    main()
