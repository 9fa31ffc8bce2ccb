"""A port for a server in a process of its own, which cannot be told to take any free one.

Law of this file: below the range from which the system takes ports for connections and for port 0, so that
nothing that runs beside takes it before the server does.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 15_000, 30_000


def free_port() -> int:
    """A port of the loopback that nobody listens on.

    Raises:
        RuntimeError: none was found.
    """
    chance = random.SystemRandom()  # two runs side by side, seeded alike, must not meet
    for _ in range(100):
        port = chance.randrange(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no free port among 100 between {FIRST} and {LAST}")
