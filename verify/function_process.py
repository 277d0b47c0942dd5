"""User-written phase functions in processes of their own: what they print, break, use up or end stays there.

The parent starts this module once for each hash seed, says on standard input what to ask, and reads the answers from a
pipe, a line for each step. Only a complete set of answers counts; the exit status of a child never does. A child has
limits on time and memory, its output goes into a file, and its whole session is killed when it has answered or is late.
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
from typing import IO, TYPE_CHECKING, Any

from preduce.topo.errors import InputError
from preduce.topo.phase import Group
from preduce.verify.functions import ask, load_function, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preduce.topo.cluster import Cluster

HASH_SEEDS = ("0", "1")
SECONDS = 60.0
SECONDS_PER_QUESTION = 50e-6
"""Time for a function: a minute, and this for every question beyond."""
MEMORY_BYTES = 4 * 2**30
OUTPUT_BYTES = 16 * 2**20
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
            [sys.executable, "-P", "-m", "preduce.verify.function_process", str(writing)],
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


def main() -> None:
    """The child: ask and answer, then end at once, whatever threads or exit handlers the function left."""
    pipe = int(sys.argv[1])
    request = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the parent
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_inheritable(pipe, False)
    try:
        _limit(request["seconds"])
        for line in _answered(request):
            _write(pipe, line)
        _write(pipe, {"end": True})
    except InputError as error:
        _write(pipe, {"error": str(error)})
    except BaseException as error:  # noqa: BLE001 - whatever else happens becomes a sentence too
        _write(pipe, {"error": f"{request['place']}: {one_line(error)}"})
    os._exit(0)


def _limit(seconds: float) -> None:
    """Bound processor time, memory, output and core files, as far as the system does that."""
    import resource

    limits = {
        resource.RLIMIT_CPU: int(seconds) + 5,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: OUTPUT_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        try:
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        except (ValueError, OSError):
            continue


def _answered(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each step the distinct groups, in the order of the workers that name them, and which worker is in which."""
    cluster: Cluster = request["cluster"]
    function = load_function(request["place"])
    for step in range(2 * request["period"]):
        number: dict[Group, int] = {}
        of = []
        for worker in range(cluster.num_workers):
            group = ask(function, worker, step, cluster)
            of.append(-1 if group is None else number.setdefault(group, len(number)))
        yield {"groups": [[group.members, str(group.relax)] for group in number], "of": of}


def _write(pipe: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


if __name__ == "__main__":
    main()
