"""Ranks as threads of one process, over the gloo groups that real processes use; worlds are created once."""

import functools
import gc
import inspect
import queue
import threading
import traceback
from datetime import timedelta

import torch.distributed as dist

from helpers.one_processor import current_processor, stay_on
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.torch_api import ProcessGroupGloo

ABANDONED = "its world was abandoned"


class ThreadRanks:
    """A pool of threads, one per rank, that keep their worlds."""

    def __init__(self, most, timeout=60):
        self.most, self.timeout = most, timeout
        self.stores: dict[int, dist.HashStore] = {}
        self.generation = 0
        self.device = ProcessGroupGloo.create_default_device()
        """Of all worlds: each device has a thread that wakes a hundred times a second."""
        self.tasks: list[queue.Queue] = [queue.Queue() for _ in range(most)]
        self.answers: queue.Queue = queue.Queue()
        self.threads = [threading.Thread(target=self._work, args=(rank,), daemon=True) for rank in range(most)]
        for thread in self.threads:
            thread.start()

    def close(self):
        """End the threads, and with them their worlds' connections: one process runs many files of tests.

        They end one after another: threads that free what torch.compile recorded at the same time can deadlock inside
        torch.
        """
        for tasks, thread in zip(self.tasks, self.threads, strict=True):
            tasks.put(None)
            thread.join(5)
        gc.collect()
        gc.freeze()  # what is left, such as modules that torch has imported, so that the next collection is short

    def fresh(self):
        """Create new worlds from now on, as after an error or when a world was abandoned."""
        self.generation += 1
        self.stores = {}

    def run(self, n, action, *, limit=280, catch=None):
        """Return what `action(world)` returns on each of n ranks; an error of type `catch` is returned, others fail."""
        store = self.stores.setdefault(n, dist.HashStore())
        processor = current_processor()
        for rank in range(n):
            self.tasks[rank].put((action, n, store, self.generation, processor))
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
        """Return for each of n ranks the text of the error of this type, else the result, with "" for None."""
        results = self.run(n, action, catch=error)
        return [str(one) if isinstance(one, error) else "" if one is None else one for one in results]

    def _work(self, rank):
        worlds: dict[tuple[int, int], GlooWorld] = {}
        while (task := self.tasks[rank].get()) is not None:
            action, n, store, generation, processor = task
            stay_on(processor)
            try:
                if (n, generation) not in worlds:
                    worlds = {key: world for key, world in worlds.items() if key[1] == generation}
                    limit = timedelta(seconds=self.timeout)
                    worlds[n, generation] = world = GlooWorld(store, rank, n, limit, max_groups=1000)
                    world._device = self.device
                result = action(worlds[n, generation])
                self.answers.put((rank, result, None, ABANDONED * worlds[n, generation].abandoned))
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.answers.put((rank, None, error, traceback.format_exc()))


def on_ranks(count, expected=None, *, fresh=False):
    """Decorate a test so that `count` ranks run it in threads, each with its `world`; check the list of results.

    Use `fresh` if the worlds do not survive the test: they are new before and after it.
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
