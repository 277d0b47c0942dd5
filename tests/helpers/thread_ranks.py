"""Many ranks as threads of one process, over the raw gloo groups that real processes use; worlds are made once."""

import functools
import gc
import inspect
import queue
import threading
import traceback
from datetime import timedelta

import torch.distributed as dist

from partreduce.runtime.transport.gloo import GlooWorld

ABANDONED = "its world was abandoned"


class ThreadRanks:
    """A warm pool of threads, one per rank."""

    def __init__(self, most, timeout=60):
        self.most, self.timeout = most, timeout
        self.stores: dict[int, dist.HashStore] = {}
        self.generation = 0
        self.tasks: list[queue.Queue] = [queue.Queue() for _ in range(most)]
        self.answers: queue.Queue = queue.Queue()
        self.threads = [threading.Thread(target=self._work, args=(rank,), daemon=True) for rank in range(most)]
        for thread in self.threads:
            thread.start()

    def close(self):
        """End the threads, and with them their worlds' connections: one process runs many files of tests.

        One after another: threads that end together and free what torch.compile has recorded can wait for one another's
        locks inside torch for ever.
        """
        for tasks, thread in zip(self.tasks, self.threads, strict=True):
            tasks.put(None)
            thread.join(5)
        gc.collect()

    def fresh(self):
        """New worlds from now on, as after an error, or where a world was abandoned: the old ones are destroyed."""
        self.generation += 1
        self.stores = {}

    def run(self, n, action, *, limit=280, catch=None):
        """What `action(world)` returns on each of n ranks; with `catch` an error of that type is returned as it is."""
        store = self.stores.setdefault(n, dist.HashStore())
        for rank in range(n):
            self.tasks[rank].put((action, n, store, self.generation))
        results = [None] * n
        problems = []
        is_broken = False
        for _ in range(n):
            rank, result, error, text = self.answers.get(timeout=limit)
            results[rank] = result if error is None else error
            is_broken |= error is not None or text == ABANDONED
            if error is not None and not (catch is not None and isinstance(error, catch)):
                problems.append(f"rank {rank}: {text}")
        if is_broken:
            self.fresh()
        assert not problems, "\n".join(problems)
        return results

    def texts(self, n, action, error):
        """The text of the error of this type that each of n ranks raises, or what it returns, "" for nothing."""
        results = self.run(n, action, catch=error)
        return [str(one) if isinstance(one, error) else "" if one is None else one for one in results]

    def _work(self, rank):
        worlds: dict[tuple[int, int], GlooWorld] = {}
        while (task := self.tasks[rank].get()) is not None:
            action, n, store, generation = task
            try:
                if (n, generation) not in worlds:
                    limit = timedelta(seconds=self.timeout)
                    worlds[n, generation] = GlooWorld(store, rank, n, limit, max_groups=1000)
                result = action(worlds[n, generation])
                self.answers.put((rank, result, None, ABANDONED * worlds[n, generation].abandoned))
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.answers.put((rank, None, error, traceback.format_exc()))


def on_ranks(count, expected=None, *, fresh=False):
    """A test that each of so many ranks runs in a thread, on its `world`; together they return what is `expected`.

    Where worlds do not outlive it they are `fresh` before and after it.
    """

    def decorate(test):
        named = [name for name in inspect.signature(test).parameters if name != "world"]

        @functools.wraps(test)
        def run(ranks, **given):
            if fresh:
                ranks.fresh()
            results = ranks.run(count, lambda world: test(world, **given))
            if fresh:
                ranks.fresh()
            assert expected is None or results == expected

        given = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ["ranks", *named]]
        run.__signature__ = inspect.Signature(given)
        return run

    return decorate
