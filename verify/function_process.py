"""User-written phase functions in processes of their own: what they print, break, use up or end stays there.

`verify.asked_function` is started once for each hash seed, told on standard input what to ask, and its answers are read
from a pipe, a line for each step. Only a complete set of answers counts; the exit status of a child never does. A child
has limits on time and memory, its output goes into a file, and its whole session is killed when it has answered or is
late.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import IO, TYPE_CHECKING

from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.verify import asked_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partreduce.topo.cluster import Cluster

HASH_SEEDS = ("0", "1")
SECONDS = 60.0
SECONDS_PER_QUESTION = 50e-6
"""Time for a function: a minute, and this for every question beyond."""
ANSWER_BYTES = 2**30

Answers = list[list[Group | None]]


def answers_in_processes(
    place: str, cluster: Cluster, period: int, *, seconds: float | None = None
) -> tuple[Answers, Answers]:
    """The answers of all workers in two periods, step by step, once under each hash seed.

    Raises:
        InputError: the function failed, or its process ended, ran for too long or used too much of something.
    """
    if seconds is None:
        seconds = SECONDS + 2 * period * cluster.num_workers * SECONDS_PER_QUESTION
    request = pickle.dumps({"place": place, "cluster": cluster, "period": period, "seconds": seconds})
    deadline = time.monotonic() + seconds
    children: list[_Child] = []
    try:
        children.extend(_Child(seed, request) for seed in HASH_SEEDS)
        with ThreadPoolExecutor(len(children)) as pool:
            one, two = pool.map(lambda child: child.answers(place, 2 * period, deadline, seconds), children)
        return one, two
    finally:
        for child in children:
            child.end()


class _Child:
    """One process that asks the function."""

    def __init__(self, seed: str, request: bytes) -> None:
        # Its output is kept apart, so that it cannot be taken for ours; the file is bounded by a limit of the child.
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        self.reading, writing = os.pipe()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
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
        assert self.process.stdin is not None, "asked for"
        try:
            self.process.stdin.write(request)
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended already; that no answers come says so

    def answers(self, place: str, num_steps: int, deadline: float, seconds: float) -> Answers:
        """All answers.

        Raises:
            InputError: they did not come, or the child says why there are none.
        """
        result: Answers = []
        for line in self._lines(place, deadline, seconds):
            try:
                message = json.loads(line)
                if "error" in message or "end" in message:
                    break
                groups = [Group(tuple(members), Fraction(relax)) for members, relax in message["groups"]]
                result.append([None if index < 0 else groups[index] for index in message["of"]])
            except (ValueError, TypeError, KeyError, IndexError):
                raise InputError(f"{place}: its process wrote into the pipe of answers") from None
        else:
            message = {}
        if "error" in message:
            raise InputError(str(message["error"]))
        if len(result) != num_steps:
            raise InputError(f"{place}: {self._how_it_ended()} before it had answered{self._last_words()}")
        return result

    def _lines(self, place: str, deadline: float, seconds: float) -> Iterator[bytes]:
        """What comes through the pipe until it is closed."""
        parts: list[bytes] = []
        total = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reading], [], [], left)[0]:
                raise InputError(f"{place}: did not answer within {seconds:.0f} seconds{self._last_words()}")
            chunk = os.read(self.reading, 2**20)
            total += len(chunk)
            if total > ANSWER_BYTES:
                raise InputError(f"{place}: its answers take more than {ANSWER_BYTES // 2**30} GiB")
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
        os.close(self.reading)
        self.output.close()
