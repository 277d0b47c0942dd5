"""Replanning: beside the training the launcher asks what workers measure, and has a better schedule planned from that.

A process of its own plans, at a low priority; what the planner is, only the command line knows. Its answer is
believed once the checker has confirmed its certificate; then it is for `views` to propose it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from partreduce.runtime.elastic.measured import LEAST_STEPS
from partreduce.runtime.environment import OMP_NUM_THREADS
from partreduce.runtime.launcher.outlet import Outlet
from partreduce.runtime.launcher.replan import Replan
from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.notes import MEASURE, MEASURED, PLAN, Notes
from partreduce.schedulers.protocols.membership.words import Propose, View
from partreduce.topo.contingency import after_loss, check_switch
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.errors import PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.verify.certificate import confirm

QUIET_TIMES = 10.0
"""So many times as long as it took to plan nothing is planned after it, at least."""
ANSWER_SECONDS = 10.0
"""How long workers may take to say what they have measured."""
PLANNING_SECONDS = 600.0
"""How long planning may take, beside the training."""


class Replanning:
    """What is planned for the members of a run; `watch` is told the group of each process that is started for it."""

    def __init__(
        self, replan: Replan, notes: Notes, facts: Callable[[], Mapping[str, Any]], outlet: Outlet,
        watch: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._replan, self._notes, self._facts, self._outlet, self._watch = replan, notes, facts, outlet, watch
        self._epoch = -1
        self._rest = self._answers = Deadline(0.0)
        self._asked = 0
        """Which question to the workers is open; 0: none."""
        self._planning: _Planning | None = None
        self._found: dict[str, dict[str, Any]] = {}
        """What was planned, by hash."""
        self._has_complained = False

    def look(self, view: View) -> Propose | None:
        """Do what is next for these members; what is to be proposed to them, once."""
        if view.epoch != self._epoch:
            self._epoch, self._asked = view.epoch, 0
            self.close()  # it was planned for others, or by what others measured
            quiet = self._replan.quiet if view.plan else self._replan.settling
            self._rest = Deadline(quiet)
        if self._planning is not None:
            return self._planned(view, self._planning)
        if self._asked:
            self._gather(view)
        elif self._rest.is_over and len(view.members) > 1:
            self._asked, self._answers = self._notes.count(MEASURE, 1), Deadline(ANSWER_SECONDS)
        return None

    def line(self, view: View) -> str:
        """What changes with a plan, in one line."""
        found = self._found[view.plan]
        before, after = (found[when] for when in ("before", "after"))
        return (
            f"partreduce: from round {view.resume[0]} the {len(view.members)} workers follow a schedule that was "
            f"planned anew, and proved: period {before['period']} → {after['period']}, predicted "
            f"{1e3 * before['step_seconds']:.1f} → {1e3 * after['step_seconds']:.1f} ms a step, and the loss "
            f"{found['gain']:.2f} times as soon\n"
        )

    def close(self) -> None:
        """Nothing is planned any more."""
        if self._planning is not None:
            self._planning.end()
            self._planning = None

    def _gather(self, view: View) -> None:
        """Plan once all members have said what they have measured, if that is enough to tell."""
        said = {rank: self._notes.read(f"{MEASURED}/{self._asked}/{rank}") for rank in view.members}
        if None in said.values() and not self._answers.is_over:
            return
        self._asked, self._rest = 0, Deadline(self._replan.settling)
        measured = {rank: json.loads(text) for rank, text in said.items() if text is not None}
        if len(measured) < len(said) or any(one["steps"] < LEAST_STEPS for one in measured.values()):
            return
        schedule = schedule_of(self._facts()["schedule"])
        question = {
            "schedule": dump_schedule(schedule),
            "now": dump_schedule(self._now(schedule, view)),
            "members": list(view.members),
            "measured": measured,
        }
        self._planning = _Planning(self._replan.command, question)
        self._watch(self._planning.pid)

    def _now(self, schedule: Schedule, view: View) -> Schedule:
        """What the members run."""
        if view.plan:
            return schedule_of(self._found[view.plan]["schedule"])
        lost = set(range(schedule.num_workers)).difference(view.members)
        return after_loss(schedule, lost) if lost else schedule

    def _planned(self, view: View, planning: _Planning) -> Propose | None:
        """What came of planning, once it has ended; all members find it where they look for it."""
        if not planning.is_over:
            return None
        self._planning, self._rest = None, Deadline(max(self._replan.quiet, QUIET_TIMES * planning.seconds))
        try:
            found = planning.answer()
            if not found:
                return None
            planned = schedule_of(found["schedule"])
            confirm(planned)
            check_switch(self._now(schedule_of(self._facts()["schedule"]), view), planned)
        except (PartreduceError, ValueError, KeyError) as error:
            if not self._has_complained:
                self._has_complained = True
                self._outlet.write(
                    f"partreduce: planning anew failed, and all go on as they do: {error}\n", errors=True
                )
            return None
        sha256 = schedule_sha256(planned)
        self._found[sha256] = found
        self._notes.write(f"{PLAN}/{sha256}", json.dumps(found["schedule"]))
        return Propose(sha256, view.members)


class _Planning:
    """A process that plans; its question and its answer lie in files, so that nobody waits for the other to read."""

    def __init__(self, command: Sequence[str], question: Mapping[str, Any]) -> None:
        self._asked, self._answered = _file(json.dumps(question)), _file("")
        self._process = subprocess.Popen(
            list(command), stdin=self._asked, stdout=self._answered, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, OMP_NUM_THREADS: "1"},
        )  # fmt: skip
        self._deadline = Deadline(PLANNING_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return self._deadline.seconds - self._deadline.left

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None or self._deadline.is_over

    def answer(self) -> dict[str, Any]:
        """What it found; empty where nothing is clearly better.

        Raises:
            ValueError: it failed, or has not come to an end in time.
        """
        code = self._process.poll()
        self._answered.seek(0)
        said = self._answered.read()
        self.end()
        if code:
            raise ValueError(f"the planner ended with exit code {code}")
        if code is None:
            raise ValueError(f"the planner took longer than {PLANNING_SECONDS:g} s")
        found: dict[str, Any] = json.loads(said)
        return found

    def end(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for file in (self._asked, self._answered):
            file.close()


def _file(text: str) -> IO[str]:
    file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    file.write(text)
    file.seek(0)
    return file
