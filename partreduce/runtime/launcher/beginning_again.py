"""Beginning again: all workers of a run are started anew when it has failed, and go on from their last checkpoint.

This is for every schedule: for those whose survivors cannot go on by themselves, and for the others where more is lost
than they can bear. Each attempt is a launcher of its own, forked from this process. It has a store, workers and a
generator of its own, so nothing of an attempt reaches the next but what the script saved. Workers see the variables of
torchrun's restarts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

from partreduce.runtime.environment import AGENT_MAX_RESTARTS, RESTART_COUNT
from partreduce.runtime.launcher.interpreter_end import flush_everything
from partreduce.runtime.launcher.launch import import_once
from partreduce.runtime.launcher.orphans import die_with_parent, orphans_ended
from partreduce.runtime.launcher.signals import (
    Terminated,
    as_in_a_fresh_process,
    heard,
    held,
    let_through,
    raise_unheard,
    shell_exit_code,
    terminable,
)
from partreduce.topo.errors import EvictedError, FileError, InputError, MissingDependencyError, PartreduceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FINAL = frozenset(error.exit_code for error in (InputError, FileError, MissingDependencyError, EvictedError))
"""Exit codes of mistakes, which the next attempt would meet as well, and of a run whose others ended well."""
LOOK_SECONDS = 0.05
LONGEST_PAUSE = 60.0
"""Seconds between two attempts, at most; hosts need a while until they are back."""


class Restarts:
    """How often a run may still start a worker, or all of them, again; its attempts count together."""

    def __init__(self, most: int) -> None:
        self._memory = mmap.mmap(-1, 8)  # forked processes share it; one at a time counts
        self._put(most)

    @property
    def left(self) -> int:
        return int.from_bytes(self._memory[:])

    def spend(self) -> None:
        self._put(self.left - 1)

    def _put(self, number: int) -> None:
        self._memory[:] = number.to_bytes(8)


def attempts(attempt: Callable[[Mapping[str, str], Restarts], int], most: int, *, pause: float = 0.0) -> int:
    """Make a first attempt, and further ones while they fail and restarts are left; the last one's exit code.

    What is asked of this process by SIGINT, SIGTERM or SIGHUP is passed on to the attempt under way, and no other
    follows.

    Args:
        attempt: runs in a forked process, with further variables for its workers, and spends restarts if it starts
            single ones again; returns its exit code.
        most: restarts in all; beginning again takes one.
        pause: seconds before the second attempt, twice as long before each later one.
    """
    import_once()  # here, so that no attempt does it again
    restarts = Restarts(most)
    with terminable():
        for number in itertools.count():
            told = {RESTART_COUNT: str(number), AGENT_MAX_RESTARTS: str(most)}
            with orphans_ended():  # what an attempt leaves that was killed itself
                code, asked = _in_a_fork(functools.partial(attempt, told, restarts))
            if not code or asked or code in FINAL or not restarts.left:
                return code
            restarts.spend()
            sys.stderr.write(
                f"partreduce: attempt {number + 1} ended with exit code {code}; all workers begin again from their "
                f"last checkpoint (restarts left: {restarts.left})\n"
            )
            time.sleep(min(LONGEST_PAUSE, pause * 2**number))
    raise AssertionError("the last attempt returns")


def _in_a_fork(action: Callable[[], int]) -> tuple[int, bool]:
    """The exit code of a forked process, 128 + signal number if it was killed; and whether it was asked to end."""
    asked = False
    with held() as mask:
        parent = os.getpid()
        flush_everything()
        child = os.fork()
        if not child:
            _become(action, parent)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            try:
                with let_through(mask):
                    raise_unheard()
                    time.sleep(LOOK_SECONDS)
            except (KeyboardInterrupt, Terminated) as signalled:
                heard()
                asked = True
                number = signalled.number if isinstance(signalled, Terminated) else signal.SIGINT
                os.kill(child, number)
    return shell_exit_code(os.waitstatus_to_exitcode(ended[1])), asked


def _become(action: Callable[[], int], parent: int) -> None:
    """What the forked process does; signals are held."""
    code = 70
    try:
        if not die_with_parent(parent):
            os._exit(code)
        try:
            as_in_a_fresh_process()
            code = action()
        except PartreduceError as error:
            sys.stderr.write(f"partreduce: {error}\n")
            code = error.exit_code
        except Terminated as ended:
            code = ended.exit_code
        except KeyboardInterrupt:
            code = shell_exit_code(-signal.SIGINT)
    except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happened
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            flush_everything()
        os._exit(code)
