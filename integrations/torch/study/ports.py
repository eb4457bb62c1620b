# SPDX-License-Identifier: MIT
"""Where the ranks of one machine find each other."""
import os
import socket


def free_port():
    """A TCP port that nobody has at this moment; runs beside each other get different ones."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def meet(port):
    """For init_process_group() without a launcher."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
