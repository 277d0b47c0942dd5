"""The checks after a fault: the run reacted in time, named the culprit, averaged correctly, and left nothing behind.

A `judge_…` function adds violations of the property in its docstring to the outcome; a `_by_…` function returns
sentences on records of a kind that violate it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.faults import views
from benchmarks.faults.injectors import OURS, STORE
from benchmarks.faults.kinds import KINDS, WORKERS, Kind
from benchmarks.faults.running import Record, Running
from benchmarks.faults.views import TOLERANCE, Records, Values, same, values_of

SLACK_SECONDS = 5.0
"""Seconds in addition to the timeout within which a fault must be reported."""
GRACE_SECONDS = 10.0
"""Additional seconds for the launcher, which gives survivors 5 s to report, then ends them in two steps."""
CRASH = re.compile(r"terminate called|Fatal Python error|signal (6|11) |SIGABRT|SIGSEGV|internal error")
LACK = r"worker \d waited in step \d+ for (an update of|a token to enter|the acknowledgement of its update of) step \d+"
SOMEBODY = r"\b(worker|rank) \d|store|generator"
ENDS = ("finished", "failed", "raised")
KILLS = (
    *("kill worker", "kill parent of children", "kill two", "kill and join", "kill joiner", "kill while one joins"),
    *("kill node", "pause for three", "cut link"),
)
"""Faults after which the survivors finish if the run continues."""


def end_of(records: list[Record]) -> Record | None:
    """Return the record of a worker's own end, None if it has none."""
    return records[-1] if records and records[-1].what in ENDS else None


def judge(running: Running) -> None:
    """All verdicts but about what is left behind."""
    judge_ends(running)
    judge_attempts(running)
    judge_crashes(running)
    judge_values(running)
    if running.task.checkpoints is not None:
        running.outcome.violations += judge_checkpoints(Path(running.task.checkpoints))
    if running.task.saves:
        judge_saved(running)


def judge_ends(running: Running) -> None:
    """All workers ended in time, and survivors name the culprit."""
    outcome, limit = running.outcome, running.cell.timeout + SLACK_SECONDS + running.held_up
    survivors = [rank for rank in range(WORKERS) if rank not in running.victims]
    ends = {rank: end_of(running.records(rank)) for rank in range(WORKERS)}
    finished = [rank for rank in survivors if (end := ends[rank]) is not None and end.what == "finished"]
    for rank in survivors:
        end = ends[rank]
        if end is not None and end.what != "finished":
            outcome.detection[rank] = end.time - running.fault_time
            outcome.texts[rank] = str(end.more)
        ended = end.time if end is not None else running.gone.get(rank)
        if rank in finished or running.pid_of(rank) is None:
            continue
        held_up_since = _held_up_since(running, rank)
        if ended is None or ended - held_up_since > limit:
            took = "never" if ended is None else f"after {ended - held_up_since:.1f} s"
            outcome.violations.append(f"late: worker {rank} ended {took}, limit {limit:.3g} s")
    ranks = range(WORKERS) if running.must_finish else survivors
    continues = running.cell.launcher in OURS and 0 < len(running.victims) <= KINDS[running.cell.kind].max_failures
    if continues and running.cell.fault in KILLS and (lost := sorted(set(survivors) - set(finished))):
        if running.starved and all((end := ends[rank]) is not None and end.what == "failed" for rank in lost):
            outcome.ended = "named error"  # whom the machine kept from answering
            outcome.note += f"; workers {lost} may end: processes got no processor for a timeout within a timeout"
            return
        outcome.violations.append(f"did not continue: workers {lost} did not finish")
    if all((end := ends[rank]) is not None and end.what == "finished" for rank in ranks):
        outcome.ended = "finished"
        return
    outcome.ended = "named error" if outcome.texts else "ended"
    if running.must_finish and _was_held_up(running) and all(end and end.what != "raised" for end in ends.values()):
        outcome.note += f"; it may end, as the machine held it up for {running.held_up:.1f} s besides"
    elif running.must_finish:
        messages = {rank: end and f"{end.what} {end.more}" for rank, end in ends.items()}
        outcome.violations.append(f"did not finish: {messages}")
    elif running.culprit:
        _judge_names(running)
        if KINDS[running.cell.kind].keeps_gap and running.cell.fault in ("kill worker", "pause for three", "cut link"):
            _judge_lack(running)


def _was_held_up(running: Running) -> bool:
    """Return whether fault and machine together may have used up the timeout, so that the run may end."""
    return running.lasts + running.held_up >= running.cell.timeout


def _held_up_since(running: Running, rank: int) -> float:
    """Return the time of the fault; if others may continue, of this worker's last step after it."""
    if not KINDS[running.cell.kind].is_free:
        return running.fault_time
    steps = [r.time for r in running.records(rank) if r.what in ("enters", "leaves", "finishes")]
    return max([running.fault_time, *steps])


def _judge_names(running: Running) -> None:
    outcome, texts = running.outcome, running.outcome.texts
    if running.cell.launcher == "torchrun":
        # There workers are not told who died (the agent reports it), and must not blame another worker.
        texts = {rank: text for rank, text in texts.items() if _names(SOMEBODY, text)}
    if not texts:
        if not _names(running.culprit, output := output_of(running)):
            outcome.violations.append(f"unnamed: no survivor spoke, and the output ends with {output[-300:]!r}")
        return
    # By hand worker 0 hosts the store, which goes with it when it has said its part: the others may lose that first.
    allowed = f"{running.culprit}|{STORE}" if running.cell.launcher == "by hand" else running.culprit
    unnamed = {rank: text for rank, text in texts.items() if not _names(allowed, text)}
    if unnamed or not any(_names(running.culprit, text) for text in texts.values()):
        outcome.violations.append(f"unnamed: {unnamed or texts}")


def _judge_lack(running: Running) -> None:
    """Survivors of an iteration gap name the step and message that they waited for, or the lost store."""
    vague = {r: text for r, text in running.outcome.texts.items() if not _names(LACK, text) and not _names(STORE, text)}
    if vague:
        running.outcome.violations.append(f"vague: {vague}")


def _names(culprit: str, text: str) -> bool:
    return re.search(culprit, text, re.IGNORECASE) is not None


def output_of(running: Running) -> str:
    path = running.folder / "output.txt"
    return path.read_text(errors="replace") if path.exists() else ""


def judge_attempts(running: Running) -> None:
    """All workers restart only after faults that allow it, or if the machine kept some from answering."""
    outcome = running.outcome
    if "all workers begin again" not in output_of(running) or "restart" in running.cell.fault:
        return
    if running.starved:
        outcome.note += "; all may restart: processes got no processor for a timeout within a timeout"
    else:
        outcome.violations.append("did not continue: all workers restarted")


def judge_saved(running: Running) -> None:
    """Every worker had time to save."""
    lost = [rank for rank in range(WORKERS) if not (running.folder / f"saved-{rank}").exists()]
    if lost:
        running.outcome.violations.append(f"not saved: workers {lost} were ended while they saved")


def judge_crashes(running: Running) -> None:
    """No process aborted, and none reports an internal error."""
    if match := CRASH.search(output_of(running)):
        line = next(line for line in output_of(running).splitlines() if match.group() in line)
        running.outcome.violations.append(f"crash: {line[:300]}")


def judge_values(running: Running) -> None:
    """No record of any worker contains a partial or mixed average."""
    kind = KINDS[running.cell.kind]
    records = {rank: running.records(rank) for rank in range(WORKERS)}
    problems = [problem for rank in range(WORKERS) for problem in _torn(rank, records[rank])]
    invariants = {
        "reference": _by_reference,
        "groups": _by_groups,
        "convex": _by_hull,
        "counts": _by_counts,
        "sums": _by_sums,
        "views": views.judge,
    }
    attempts = _attempts(records)
    for attempt in attempts:
        problems += invariants[kind.law](kind, attempt)
    finals = [(rank, values_of(r[-1])) for rank, r in records.items() if r and r[-1].what == "finished"]
    problems += [
        f"worker {rank} finished with {values}, worker {finals[0][0]} with {finals[0][1]}"
        for rank, values in finals[1:]
        if not same(values, finals[0][1])
    ]
    running.outcome.violations += [f"wrong: {problem}" for problem in problems[:4]]
    if kind.law == "views" and (joined := views.joins_in(views.views_of(attempts[-1])[0])):
        running.outcome.note += f"; {joined} joined"


def _attempts(records: Records) -> list[Records]:
    """Return the workers' records by attempt; an attempt keeps nothing of the one before but what was saved."""
    parted: dict[int, Records] = {}
    for rank, listed in records.items():
        attempt = 0
        for record in listed:
            begins = record.what == "begins"
            attempt = record.step if begins else attempt
            part = parted.setdefault(attempt, {one: [] for one in records})[rank]
            part.append(replace(record, step=0) if begins else record)
    return [part for _, part in sorted(parted.items())] or [records]


def _torn(rank: int, records: list[Record]) -> list[str]:
    """Return sentences on rows whose columns differ, and on weights that do not sum to 1."""
    problems = []
    for record in records:
        place = f"worker {rank} {record.what} step {record.step}"
        torn = [(low, high) for low, high in record.rows if not high - low <= TOLERANCE + 1e-5 * abs(high)]
        problems += [f"{place}: a row holds {torn[0]}"] if torn else []
        ones = record.rows[WORKERS][0]
        problems += [] if abs(ones - 1) <= TOLERANCE else [f"{place}: the row of ones holds {ones}"]
    return problems[:2]


def _each(records: Records) -> Iterator[tuple[int, Record, Values, str]]:
    """Yield (rank, record, its values, a sentence about them) for all records."""
    for rank, listed in records.items():
        for record in listed:
            values = values_of(record)
            yield rank, record, values, f"worker {rank} {record.what} step {record.step} with {values}"


def _by_reference(kind: Kind, records: Records) -> list[str]:
    last = max((record.step for listed in records.values() for record in listed), default=0)
    states, problems = views.states(kind, last + 1 + kind.lag), []
    means = states.mean(axis=1)
    for rank, record, values, text in _each(records):
        before, after, s = states[record.step][rank], states[record.step + 1][rank], record.step
        may = {
            "enters": [before],
            "leaves": [after],
            "finishes": [before],
            "finished": [means[s + kind.lag]],  # what is late is applied at the end
        }.get(record.what, [before, after, means[s]] + ([] if kind.gradients else [before + np.eye(WORKERS)[rank]]))
        if not any(same(values, allowed) for allowed in may):
            problems.append(f"{text}, not {may}")
    return problems


def _by_hull(_: Kind, records: Records) -> list[str]:
    steps = np.array([max((r.step for r in records[w]), default=0) + 1 for w in range(WORKERS)])
    return [
        f"{text}, and steps were {steps}"
        for _, _, values, text in _each(records)
        if np.any(values < -TOLERANCE) or np.any(values > steps + TOLERANCE)
    ]


def _by_counts(kind: Kind, records: Records) -> list[str]:
    """Asynchronous server: whole pushes, each once, and all of the worker's own."""
    problems = _by_hull(kind, records)
    for rank, record, values, text in _each(records):
        whole = np.all(np.abs(values - np.round(values)) <= TOLERANCE)
        own = {"enters": [0], "leaves": [1]}.get(record.what, [0, 1])
        if record.what != "finished" and (not whole or round(values[rank]) - record.step not in own):
            problems.append(text)
    return problems


def _by_sums(_: Kind, records: Records) -> list[str]:
    """Quorum: whole gradients divided by all workers, equal models at equal steps, and finally every gradient once."""
    problems, known = [], dict[int, Values]()
    calls = {rank: sum(record.what == "enters" for record in listed) for rank, listed in records.items()}
    for _, record, values, text in _each(records):
        if np.any(np.abs(values * WORKERS - np.round(values * WORKERS)) > TOLERANCE):
            problems.append(f"{text}, which are not whole gradients")
        if record.what == "enters" and not same(values, known.setdefault(record.step, values)):
            problems.append(f"{text}, and another with {known[record.step]}")
        if record.what == "finished" and not same(values, np.array([calls[w] for w in range(WORKERS)]) / WORKERS):
            problems.append(f"{text}, and workers made {calls} gradients")
    return problems


def _by_groups(kind: Kind, records: Records) -> list[str]:
    """Dynamic groups: after a group a member holds the mean of the members' models, or its own."""
    problems = _by_hull(kind, records)
    passed: dict[tuple[int, int], Values] = {}
    groups: list[tuple[int, Record, Values]] = []
    for rank, listed in records.items():
        entered = None
        for record in listed:
            if record.what == "enters":
                entered = values_of(record) + np.eye(WORKERS)[rank]
            elif record.what == "leaves" and entered is not None:
                groups.append((rank, record, entered))
                for seq, _ in record.more:
                    passed[seq, rank] = entered
                entered = None
        if entered is not None:
            passed[-1, rank] = entered
    for rank, record, entered in groups:
        may = [entered]
        for seq, members in record.more:
            theirs = [passed.get((seq, member), passed.get((-1, member))) for member in members]
            if any(one is None for one in theirs):
                break  # that member met the group while it left, where nothing was written down
            may.append(np.mean([one for one in theirs if one is not None], axis=0))
        else:
            if not any(same(values_of(record), allowed) for allowed in may):
                problems.append(f"worker {rank} leaves step {record.step} with {values_of(record)}, not one of {may}")
    return problems


def judge_checkpoints(folder: Path) -> list[str]:
    """Every checkpoint with a manifest can be read."""
    problems = []
    for manifest in folder.glob("round-*/manifest.json"):
        try:
            entries = json.loads(manifest.read_text())["workers"]
        except ValueError:
            problems.append(f"checkpoint: {manifest.parent.name} has a broken manifest")
            continue
        for rank, entry in enumerate(entries):
            files = [path for path in manifest.parent.glob("*.safetensors") if re.search(rf"0*{rank}\.", path.name)]
            if not any(hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"] for path in files):
                problems.append(f"checkpoint: {manifest.parent.name} lacks worker {rank}'s file, or it is damaged")
    return problems
