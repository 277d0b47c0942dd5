"""User-written phase functions in processes of their own: what they print, break, use up or end stays there.

`verify.asked_function` is started twice, each time with a hash seed drawn at random, and is asked for the groups of one
step at a time: once in the order of steps and workers, once in an order drawn at random. A question has an id that
nobody can know before it is asked, and only an answer that bears it counts: what a function writes into the pipe of
answers beforehand, or besides, is refused. A child has limits on time and memory, its output goes into a file, and its
whole session is killed when it has answered or is late. Its exit status never counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import IO

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.verify import asked_function

SECONDS = 60.0
SECONDS_PER_QUESTION = 50e-6
"""Time for a function: a minute, and this for every question beyond."""
ANSWER_BYTES = 2**30

Answers = list[list[Group | None]]


def answers_in_processes(
    place: str, cluster: Cluster, period: int, *, seconds: float | None = None
) -> list[tuple[int, Answers]]:
    """Two hash seeds, and for each the answers of all workers in two periods, step by step.

    Raises:
        InputError: the function failed, or its process ended, ran for too long or used too much of something.
    """
    if seconds is None:
        seconds = SECONDS + 2 * period * cluster.num_workers * SECONDS_PER_QUESTION
    deadline = time.monotonic() + seconds
    in_order = list(range(2 * period))
    shuffled = random.sample(in_order, len(in_order))
    children: list[_Child] = []
    try:
        seeds = random.sample(range(2**32), 2)
        children.extend(_Child(place, cluster, seed, deadline, seconds) for seed in seeds)
        with ThreadPoolExecutor(len(children)) as pool:
            answers = pool.map(_Child.answers, children, (in_order, shuffled), (False, True))
            return list(zip(seeds, answers, strict=True))
    finally:
        for child in children:
            child.end()


class _Child:
    """One process that asks the function."""

    def __init__(self, place: str, cluster: Cluster, seed: int, deadline: float, seconds: float) -> None:
        self.place, self.num_workers, self.deadline, self.seconds = place, cluster.num_workers, deadline, seconds
        # Its output is kept apart, so that it cannot be taken for ours; the file is bounded by a limit of the child.
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        self.reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads would count against the limit on memory
        self.process = subprocess.Popen(
            [sys.executable, "-P", asked_function.__file__, str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.output,
            env=environment,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        self._tell(pickle.dumps({"place": place, "cluster": cluster, "seconds": seconds}))

    def _tell(self, data: bytes) -> None:
        assert self.process.stdin is not None, "asked for"
        with contextlib.suppress(BrokenPipeError):  # it ended already; that no answers come says so
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def answers(self, steps: Sequence[int], shuffled: bool) -> Answers:
        """All answers, by step, asked for in this order of steps and, if `shuffled`, in any order of workers.

        Raises:
            InputError: they did not come, or the child says why there are none.
        """
        result: Answers = [[] for _ in steps]
        lines = self._lines()
        for step in steps:
            identity = secrets.token_hex(16)
            question = {"id": identity, "step": step, "shuffled": shuffled}
            self._tell(json.dumps(question).encode() + b"\n")
            line = next(lines, None)
            if line is None:
                raise InputError(f"{self.place}: {self._how_it_ended()} before it had answered{self._last_words()}")
            result[step] = self._read(line, identity)
        return result

    def _read(self, line: bytes, identity: str) -> list[Group | None]:
        """The answer of every worker to the question of that id."""
        try:
            message = json.loads(line)
            if "error" not in message:
                groups = [Group(tuple(members), Fraction(relax)) for members, relax in message["groups"]]
                answers = [None if index < 0 else groups[index] for index in message["of"]]
                if message["id"] == identity and len(answers) == self.num_workers:
                    return answers
        except (ValueError, TypeError, KeyError, IndexError):
            message = {}
        raise InputError(str(message.get("error", f"{self.place}: wrote into the pipe through which its answers come")))

    def _lines(self) -> Iterator[bytes]:
        """What comes through the pipe until it is closed."""
        parts: list[bytes] = []
        total = 0
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.reading], [], [], left)[0]:
                raise InputError(f"{self.place}: did not answer within {self.seconds:.0f} seconds{self._last_words()}")
            chunk = os.read(self.reading, 2**20)
            total += len(chunk)
            if total > ANSWER_BYTES:
                raise InputError(f"{self.place}: its answers take more than {ANSWER_BYTES // 2**30} GiB")
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                yield b"".join([*parts, part])
                parts.clear()
            parts.append(rest)
            if not chunk:
                return

    def _how_it_ended(self) -> str:
        """What became of the process, once the pipe is closed."""
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "its process closed the pipe of answers"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            why = {"SIGXCPU": ", the limit on time", "SIGXFSZ": ", the limit on output"}.get(name, "")
            return f"its process was ended by {name}{why}"
        return f"its process ended with exit status {status}"

    def _last_words(self) -> str:
        """The last line that the child printed, for a sentence."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - 2000))
        lines = self.output.read().decode(errors="replace").split("\n")
        words = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        printable = "".join(character for character in words if character.isprintable())[:200]
        return f"; it printed last: {printable}" if printable else ""

    def end(self) -> None:
        """Kill the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None, "asked for"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self.reading)
        self.output.close()
