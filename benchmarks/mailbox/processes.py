"""Processes of one measurement over loopback: started together, each answers with one line of JSON.

A module that measures is started once for each process as `python -m MODULE --worker JSON`, where JSON is the list of
its rank, the port of the common store, and what it was given.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partreduce.runtime.transport.torch_api import Store

LIMIT_SECONDS = 300.0


def together(module: str, count: int, *given: object) -> list[Any]:
    """What `count` processes of a module answer, by rank; where one fails, the others end and None stands for them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", module, "--worker"]
    running = [
        subprocess.Popen(
            [*command, json.dumps([rank, port, *given])], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for rank in range(count)
    ]
    results: list[Any] = [None] * count

    def read(rank: int) -> None:
        try:
            results[rank] = json.loads(running[rank].communicate(timeout=LIMIT_SECONDS)[0].splitlines()[-1])
        finally:
            if results[rank] is None:  # the others would wait for it
                for each in running:
                    each.kill()

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def store_at(port: int, rank: int) -> Store:
    """The store of all processes; the first one holds it."""
    import torch.distributed as dist

    store: Store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=timedelta(seconds=60))
    return store


def meet(store: Store, rank: int, count: int) -> None:
    """Wait until all have come here."""
    store.set(f"done{rank}", "")
    store.wait([f"done{other}" for other in range(count)])


def leave(store: Store, rank: int, count: int) -> None:
    """The last call: the first process ends after all others, since it holds the store."""
    store.set(f"closed{rank}", "")
    if rank == 0:
        store.wait([f"closed{other}" for other in range(count)])


def memory(line: str) -> int:
    """Bytes, from a line of Linux's account of this process (VmRSS, VmHWM)."""
    text = Path("/proc/self/status").read_text()
    return next(int(row.split()[1]) for row in text.splitlines() if row.startswith(line + ":")) * 1024


def memory_now() -> int:
    """Resident bytes; the peak (VmHWM) begins anew."""
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    return before
