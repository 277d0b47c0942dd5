"""Many ranks as threads of one process, over the raw gloo groups that real processes use; worlds are made once."""

from __future__ import annotations

import gc
import queue
import threading
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from partreduce.runtime.transport.gloo import GlooWorld

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadRanks:
    """A warm pool of threads, one per rank."""

    def __init__(self, most: int, timeout: float = 60) -> None:
        self.most, self.timeout = most, timeout
        self.stores: dict[int, dist.HashStore] = {}
        self.generation = 0
        self.tasks: list[queue.Queue] = [queue.Queue() for _ in range(most)]
        self.answers: queue.Queue = queue.Queue()
        self.threads = [threading.Thread(target=self._work, args=(rank,), daemon=True) for rank in range(most)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """End the threads, and with them their worlds' connections: one process runs many files of tests."""
        for tasks in self.tasks:
            tasks.put(None)
        for thread in self.threads:
            thread.join(5)
        gc.collect()

    def fresh(self) -> None:
        """New worlds from now on: after a failure the old ones are destroyed."""
        self.generation += 1
        self.stores = {}

    def run(self, n: int, action: Callable, *, limit: float = 280, catch: type[Exception] | None = None) -> list:
        """What `action(world)` returns on each of n ranks; with `catch` an error of that type is returned as it is."""
        store = self.stores.setdefault(n, dist.HashStore())
        for rank in range(n):
            self.tasks[rank].put((action, n, store, self.generation))
        results = [None] * n
        problems = []
        for _ in range(n):
            rank, result, error, text = self.answers.get(timeout=limit)
            results[rank] = result if error is None else error
            if error is not None and not (catch is not None and isinstance(error, catch)):
                problems.append(f"rank {rank}: {text}")
        assert not problems, "\n".join(problems)
        return results

    def _work(self, rank: int) -> None:
        worlds: dict[tuple[int, int], GlooWorld] = {}
        while (task := self.tasks[rank].get()) is not None:
            action, n, store, generation = task
            try:
                if (n, generation) not in worlds:
                    limit = timedelta(seconds=self.timeout)
                    worlds[n, generation] = GlooWorld(store, rank, n, limit, max_groups=1000)
                self.answers.put((rank, action(worlds[n, generation]), None, ""))
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.answers.put((rank, None, error, traceback.format_exc()))
