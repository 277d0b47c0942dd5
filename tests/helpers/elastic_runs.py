"""A run that goes on after losses, with deaths at instants that are chosen, and what it must come to by hand.

Gradients do not depend on the model and are multiples of 12/8: their means over 4, 3 and 2 workers are exact, so the
replay, which knows nothing but who was in which sum, has the same bits.
"""

import io
import json
import os
import re
import signal
import sys
import time
import warnings

import numpy as np
import torch

from partreduce.runtime.averaging.bucketed_gradients import LayerSender
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.data.sampler import RoundSampler
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.elastic.regroup import Regroup
from partreduce.runtime.environment import RESTARTED
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.state.saved_state import Handover
from partreduce.runtime.strategies.gradient_average import GradientAverage
from partreduce.runtime.transport.multistage_allreduce import HierarchicalCommunicator
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce

RATE = 0.25
START = (1.0, -2.0, 0.5)
AWAITED = "awaited"
"""A note of these runs: somebody waits for who is to come back."""


def gradient(rank, step, size=3):
    """What a worker adds in a step."""
    return tuple(12 / 8 * ((rank + 1) * (step + place) % 7 - 3) for place in range(size))


EVEN_ODD = ([(0, 1), (2, 3)], [(0, 3), (1, 2)])
"""Pairs that take turns."""


def pairs_until(resume, pairs_of_4, schedule, left=(0, 1, 3)):
    """The groups of a round where one of such pairs is lost in round 4, and the rest resumes as a schedule says."""

    def groups(round_):
        if round_ < 4:
            return EVEN_ODD[round_ % 2]
        if round_ < resume:
            return pairs_of_4
        return [tuple(left[place] for place in group.members) for group in schedule.phase(round_)]

    return groups


def start_of(size):
    """The model of the start, of so many numbers."""
    return [START[place % len(START)] for place in range(size)]


def at(kind, method, when, number=signal.SIGKILL):
    """Let this process die, once, as a method of a class is called, `when` that says so."""
    original = getattr(kind, method)

    def patched(self, *arguments, **named):
        if when(self, *arguments, **named):
            os.kill(os.getpid(), number)
        return original(self, *arguments, **named)

    setattr(kind, method, patched)


def fail_after_confirm(round_):
    """Let a confirm be broken here that all others have."""
    original = Reducer.agree

    def agree(self, kind, in_round, group, *fields, deferred=False):
        original(self, kind, in_round, group, *fields, deferred=deferred)
        if kind == "confirm" and in_round == round_ and len(group.members) == 4:
            operation = self.recorder.begin("confirm that breaks", round_, round_, group.members, 16)
            raise self.outlives.broke(operation, RuntimeError("broken here"))

    Reducer.agree = agree


def ask_late(_round):
    """Let a worker that was started again come when the others have finished."""
    original = Member.connect_all

    def connect_all(self, reducers, state):
        while not all(self.notes.has(f"left/{rank}") for rank in range(self.world.size) if rank != self.world.rank):
            time.sleep(0.01)
        original(self, reducers, state)

    Member.connect_all = connect_all


def ask_when_awaited():
    """Let a worker that was started again come when another waits for it: after the loss, in a round that is known."""
    original = Member.connect_all

    def connect_all(self, reducers, state):
        self.notes.wait_for(AWAITED)
        original(self, reducers, state)

    Member.connect_all = connect_all


def fail(_round):
    """Let this worker's script have an error of its own."""

    def begin(*_arguments, **_named):
        raise ZeroDivisionError

    Reducer.begin = begin


def wait_for(optimizer, back):
    """Wait until these workers are members again, or this one has heard that it is to vote for the next generation."""
    member, deadline = optimizer.run.membership, time.monotonic() + 60
    member.notes.write(AWAITED, "1")
    while not (set(back) <= set(member.members) or member.is_called):
        assert time.monotonic() < deadline, f"{back} did not come back"
        time.sleep(0.01)


def is_turn(turn, kind, in_round):
    """Whether an operation is of this round, or of (round, fragment)."""
    round_, fragment = turn if isinstance(turn, tuple) else (turn, None)
    return in_round == round_ and (fragment is None or kind.endswith(f"fragment {fragment}"))


def is_confirm(turn, in_round, number):
    """The same of its confirm, which tells its number of all operations of rounds; there are two fragments."""
    return number == 2 * turn[0] + turn[1] if isinstance(turn, tuple) else in_round == turn


def is_of(turn, reduction):
    return is_turn(turn, reduction.operation.kind, reduction.operation.round)


INSTANTS = {
    "before the sum": lambda t: at(Reducer, "begin", lambda _, kind, step, round_, *a, **n: is_turn(t, kind, round_)),
    "in the sum": lambda t: at(Reducer, "wait", lambda _, reduction: is_of(t, reduction)),
    "prepared": lambda t: at(Reducer, "agree", lambda _, kind, round_, _g, number, *a: is_confirm(t, round_, number)),
    "confirmed": lambda t: at(Reducer, "commit", lambda _, reduction, action: is_of(t, reduction)),
    "layers left": lambda t: at(LayerSender, "_send_next", lambda self, one: one.operation.step == t and self._sent),
    "in flight": lambda t: at(Member, "wait", lambda _, flight, **n: not n and flight.turn == t),
    "applying": lambda t: at(GradientAverage, "_commit", lambda _, flight: flight.step == t),
    "at the end": lambda t: at(Member, "wait", lambda _, flight, *, meets=False: meets and flight.step == t),
    "voting": lambda _: at(Member, "await_view", lambda *_: True),
    "asking": lambda _: at(Member, "_await_answer", lambda *_: True),
    "asking late": ask_late,
    "giving its state": lambda _: at(Handover, "give", lambda *_: True),
    "taking a state": lambda _: at(Handover, "take", lambda *_: True),
    "rebuilding": lambda _: at(Regroup, "connect", lambda *_: True),
    "in mean_model()": lambda _: at(Reducer, "begin", lambda _, kind, *a, **n: kind == "mean model"),
    "confirm breaks": fail_after_confirm,
    "stopped": lambda r: at(Reducer, "begin", lambda _, kind, step, in_round, *a, **n: in_round == r, signal.SIGSTOP),
    "an error": fail,
}


def run(deaths, *, steps_per_round=1, steps=9, workers=4, max_failures=3, evaluate=(), timeout=60.0, strategy=None,
        failure_plan=None, restarts=0, again=None, back=(), waits_at=8, decays=None, samples=0, nodes=1, size=3,
        dtype=torch.float64, parameters=1, pause=lambda _rank, _step: 0.0):  # fmt: skip
    """(exit code, what each worker said at its end, all that was written) of a run.

    Args:
        deaths: by rank, (instant, round).
        steps_per_round: gradients are averaged where it is 1.
        steps: of each worker.
        workers: at the start.
        max_failures: how many may be.
        evaluate: after which steps the mean model is looked at.
        timeout: of the optimizer, in seconds.
        strategy: in place of `allreduce` with these steps per round.
        failure_plan: what the schedule plans.
        restarts: how often lost workers are started again.
        again: by the number of a restart, the deaths of that process, as (instant, round).
        back: who comes back: from the step `waits_at` on workers wait for that, and those that come back for this.
        waits_at: a step after the deaths.
        decays: with a learning rate that halves every fifth step; "handed over" or not.
        nodes: on which workers lie, equally many on each.
        size: numbers of the model; a sum over nodes has stages from 1 kB on.
        dtype: of the model.
        pause: seconds that a worker computes in a step, beside what that takes anyway.
        parameters: into how many the numbers of the model are cut, `weight0` and so on.
        samples: of a data set that a RoundSampler deals, one a step, in order, over one epoch; 0 for all steps
            alike.
    """

    again = again or {}

    def work():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: sys.stderr.write(f"{message}\n")  # pytest would keep them
        rank = int(os.environ["RANK"])
        started = int(os.environ.get(RESTARTED, "0"))
        for instant, round_ in [deaths[rank]] if rank in deaths and not started else again.get(started, []):
            INSTANTS[instant](round_)
        if started and back:
            ask_when_awaited()
        numbers = torch.tensor(start_of(size), dtype=dtype).tensor_split(parameters)
        model = torch.nn.ParameterDict({f"weight{place}": part.clone() for place, part in enumerate(numbers)})
        weights = lambda: torch.cat([part.detach() for part in model.values()]).tolist()  # noqa: E731
        kind = strategy or AllReduce(steps_per_round=steps_per_round)
        schedule = Schedule("goes on", Cluster.regular(nodes, workers // nodes), kind, failure_plan=failure_plan)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=timeout)
        means, seen = [], []
        scheduler = None
        if decays:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
            if decays == "handed over":
                optimizer.register_stateful(scheduler)
        batches = range(steps)
        if samples:
            batches = torch.utils.data.DataLoader(
                range(samples), 1, sampler=RoundSampler(samples, schedule, 1, shuffle=False), drop_last=True
            )
        for batch in optimizer.batches(batches):
            step = optimizer.steps if samples else batch
            seen += [(step, int(batch))]
            if back and step >= waits_at:
                wait_for(optimizer, back)
            time.sleep(pause(rank, step))
            optimizer.zero_grad()
            moves = torch.tensor(gradient(rank, step, size), dtype=dtype).tensor_split(parameters)
            sum((part * move).sum() for part, move in zip(model.values(), moves, strict=True)).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if step in evaluate:
                with optimizer.mean_model():
                    means.append(weights())
        own = weights()
        said = {"in_stages": _sums_in_stages(optimizer)}
        said |= {
            "reference": next(
                (part.reference.round for part in getattr(optimizer.runner, "parts", []) if part.reference), None
            )
        }
        optimizer.finish()
        said |= {"rank": rank, "own": own, "end": weights(), "means": means, **optimizer.stats()}
        said |= {"seen": seen, "views": getattr(optimizer.run.membership, "views", [])}
        sys.stdout.write(f"REPORT {json.dumps(said)}\n")

    output = io.StringIO()
    code = launch(
        work, num_workers=workers, num_nodes=nodes, threads=1, max_failures=max_failures, max_restarts=restarts,
        output=output,
    )  # fmt: skip
    text = output.getvalue()
    said = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return code, {one["rank"]: one for one in said}, text


def _sums_in_stages(optimizer):
    """Whether the group of all who are left does."""
    member, world = optimizer.run.membership, optimizer.run.reducer.world
    members = member.members
    return world.has(members) and isinstance(world.communicator(members), HierarchicalCommunicator)


def own(said):
    """What each worker that said something held before `finish()`, by rank."""
    return {rank: one["own"] for rank, one in said.items()}


def views_of(said):
    """Who is a member in a turn, as the workers have heard."""
    views = [(after, tuple(members)) for after, members in next(iter(said.values()))["views"]]
    return lambda turn: next(members for after, members in reversed(views) if after <= turn)


def replayed(groups_in, survivors, *, steps_per_round=1, steps=9, workers=4, gradients=None, joins=None, decays=False,
             begun=0, models=None, size=3, outer=None, present=None):  # fmt: skip
    """What survivors hold before `finish()`, by rank; `groups_in(round)` are those whose means are taken.

    `joins` says by rank in which round a worker joins, and with whose state. A run that goes on has `begun` before,
    with these `models`. With `outer` a group makes outer steps of as many as are `present` in the round.
    """
    models = models or {rank: start_of(size) for rank in range(workers)}
    outer_params, momentum = start_of(size), [0.0] * size
    for step in range(begun, steps):
        groups, rate = groups_in(step // steps_per_round), RATE * (0.5 ** (step // 5) if decays else 1)
        if gradients or (gradients is None and steps_per_round == 1):
            (members,) = groups
            moves = [sum(g) / len(members) for g in zip(*(gradient(rank, step, size) for rank in members), strict=True)]
            models = {rank: [x - rate * g for x, g in zip(model, moves, strict=True)] for rank, model in models.items()}
            continue
        for rank, model in models.items():
            models[rank] = [x - rate * g for x, g in zip(model, gradient(rank, step, size), strict=True)]
        for rank, (round_, donor) in (joins or {}).items():
            if step == (round_ + 1) * steps_per_round - 1:
                own = gradient(rank, step, size)
                models[rank] = [x - rate * g for x, g in zip(models[donor], own, strict=True)]
        for members in groups if step % steps_per_round == steps_per_round - 1 else ():
            mean = [sum(x) / len(members) for x in zip(*(models[rank] for rank in members), strict=True)]
            if outer is not None and len(members) == present(step // steps_per_round):
                moved = [m - a for m, a in zip(mean, outer_params, strict=True)]
                momentum = [float(outer.momentum) * b + d for b, d in zip(momentum, moved, strict=True)]
                if outer.nesterov:
                    moved = [d + float(outer.momentum) * b for d, b in zip(moved, momentum, strict=True)]
                else:
                    moved = momentum
                outer_params = mean = [a + float(outer.lr) * d for a, d in zip(outer_params, moved, strict=True)]
            models = {rank: list(mean) if rank in members else model for rank, model in models.items()}
    return {rank: models[rank] for rank in survivors}


def replayed_in_turns(
    members_of, survivors, *, steps_per_round, steps, fragments, outer, joins=None, workers=4, size=3, late=0, alpha=0
):
    """What survivors hold before `finish()`, by rank, where fragments of the model make outer steps in turn.

    `members_of(turn)` are who averages in it; fragment p has turn `round * fragments + p`, after (p + 1) / fragments of
    the round's steps. `joins` says by rank in which turn a worker joins, and with whose state. What is averaged is of
    `late` steps before, and `alpha` of a worker's own model stays.
    """
    models = {rank: np.array(start_of(size)) for rank in range(workers)}
    sent = {rank: [None] * fragments for rank in range(workers)}
    outer_params, momentum = np.array(start_of(size)), np.zeros(size)
    parts = np.array_split(np.arange(size), fragments)
    ends = [(number + 1) * steps_per_round // fragments for number in range(fragments)]
    for step in range(steps):
        round_, taken = step // steps_per_round, step % steps_per_round + 1
        moves = {rank: -RATE * np.array(gradient(rank, step, size)) for rank in models}
        models = {rank: model + moves[rank] for rank, model in models.items()}
        if not late:
            sent = {rank: [model[part] for part in parts] for rank, model in models.items()}
        for number, part in enumerate(parts):
            if ends[number] != taken:
                continue
            turn = round_ * fragments + number
            for rank, (joined, donor) in (joins or {}).items():
                if joined == turn:
                    models[rank], sent[rank] = models[donor] + moves[rank], list(sent[donor])
                    if not late:
                        sent[rank][number] = models[rank][part]
            if any(sent[rank][number] is None for rank in members_of(turn)):
                continue  # nothing was sent yet
            moved = np.mean([sent[rank][number] for rank in members_of(turn)], axis=0) - outer_params[part]
            momentum[part] = float(outer.momentum) * momentum[part] + moved
            ahead = moved + float(outer.momentum) * momentum[part] if outer.nesterov else momentum[part]
            outer_params[part] += float(outer.lr) * ahead
            for rank in members_of(turn):
                models[rank][part] = alpha * models[rank][part] + (1 - alpha) * outer_params[part]
        for number, part in enumerate(parts) if late else ():
            if (taken + late - ends[number]) % steps_per_round == 0:
                for rank, model in models.items():
                    sent[rank][number] = model[part].copy()
    return {rank: models[rank].tolist() for rank in survivors}


def replayed_own_outer(groups_in, survivors, *, steps, outer, joins=None, workers=4, size=3):
    """What survivors hold before `finish()`, by rank, where each takes outer steps from its last model, every step."""
    outer_params = {rank: np.array(start_of(size)) for rank in range(workers)}
    models, momentum = dict(outer_params), {rank: np.zeros(size) for rank in range(workers)}
    for step in range(steps):
        moves = {rank: -RATE * np.array(gradient(rank, step, size)) for rank in models}
        models = {rank: model + moves[rank] for rank, model in models.items()}
        for rank, (joined, donor) in (joins or {}).items():
            if joined == step:
                models[rank] = models[donor] + moves[rank]
                outer_params[rank], momentum[rank] = outer_params[donor], momentum[donor]
        for members in groups_in(step):
            mean = np.mean([models[rank] for rank in members], axis=0)
            for rank in members:
                momentum[rank] = float(outer.momentum) * momentum[rank] + mean - outer_params[rank]
                outer_params[rank] = models[rank] = outer_params[rank] + float(outer.lr) * momentum[rank]
    return {rank: models[rank].tolist() for rank in survivors}


def replayed_by_steps(members_of, survivors, *, worker_steps, rounds, joins=None, size=3):
    """What survivors hold before `finish()`, by rank, where progress is brought to the members' mean steps per round.

    Who joins adds one step to its donor's progress, which is of the donor's own steps.
    """
    models = {rank: np.array(start_of(size)) for rank in range(len(worker_steps))}
    for round_ in range(rounds):
        members, brought = members_of(round_), {}
        mean_steps = np.mean([worker_steps[rank] for rank in members])
        for rank, model in models.items():
            steps = range(round_ * worker_steps[rank], (round_ + 1) * worker_steps[rank])
            progress = sum(-RATE * np.array(gradient(rank, step, size)) for step in steps)
            brought[rank] = model + progress * mean_steps / worker_steps[rank]
        for rank, (joined, donor) in (joins or {}).items():
            if joined == round_:
                last = -RATE * np.array(gradient(rank, (round_ + 1) * worker_steps[rank] - 1, size))
                given = models[donor] + (brought[donor] - models[donor]) * worker_steps[donor] / mean_steps
                brought[rank] = given + last * (mean_steps if worker_steps[rank] == 1 else 1)
        mean = np.mean([brought[rank] for rank in members], axis=0)
        models = {rank: mean if rank in members else brought[rank] for rank in models}
    return {rank: models[rank].tolist() for rank in survivors}


def joins_in(text):
    """(rank, round) of all who have joined, as the launcher said: one view may lose a worker and take it in again."""
    found = re.findall(r"partreduce: (worker \d(?: and worker \d)*) joined in round (\d+) with", text)
    return [(int(rank), int(round_)) for names, round_ in found for rank in re.findall(r"\d", names)]


def replayed_late(said, *, joins=(), lag, steps, warm_up=0, size=3, total=False, drops=False):
    """What all hold before `finish()`, and after, where gradients are applied so many steps late.

    From nothing but the views, and who has joined in which round: a mean is over those who are left when it is applied
    and were there when it was taken.
    """
    views = [(after, tuple(members)) for after, members in next(iter(said.values()))["views"]]

    def mean(step, turn):
        members = [members for after, members in views if after <= turn][-1]
        late = {rank for rank, joined in joins if step < joined <= turn}
        givers = [rank for rank in members if rank not in late]
        divisor = 1 if total else len(givers)
        return [sum(g) / divisor for g in zip(*(gradient(rank, step, size) for rank in givers), strict=True)]

    model = start_of(size)
    for turn in range(steps + lag):
        if turn == steps:
            own = model
        step = turn if turn < warm_up else turn - lag
        if step >= warm_up * (turn >= warm_up) and not (drops and turn >= steps):
            moves = mean(step, turn)
            model = [x - RATE * g for x, g in zip(model, moves, strict=True)]
    return own, model


def replayed_overlapped(groups_in, survivors, *, steps_per_round, steps, joins=None, workers=4, size=3, mean_of=None):
    """What survivors hold before `finish()`, by rank, where a round ends with the mean of its beginning.

    `joins` says by rank in which round a worker joins, and with whose state. `mean_of` takes what is averaged.
    """
    mean_of = mean_of or (lambda starts: np.mean(starts, axis=0))
    models = {rank: np.array(start_of(size)) for rank in range(workers)}
    starts = dict(models)
    for step in range(steps):
        round_ = step // steps_per_round
        if step % steps_per_round == 0:
            starts = dict(models)
        moves = {rank: -RATE * np.array(gradient(rank, step, size)) for rank in models}
        models = {rank: model + moves[rank] for rank, model in models.items()}
        if step % steps_per_round != steps_per_round - 1:
            continue
        for rank, (joined, donor) in (joins or {}).items():
            if joined == round_:
                models[rank], starts[rank] = models[donor] + moves[rank], starts[donor]
        for members in groups_in(round_):
            mean = mean_of([starts[rank] for rank in members])
            models |= {rank: models[rank] + mean - starts[rank] for rank in members}
    return {rank: models[rank].tolist() for rank in survivors}
