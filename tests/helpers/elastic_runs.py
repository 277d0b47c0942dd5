"""Runs that continue after failures, with workers killed at chosen events, and a replay of their models.

Gradients do not depend on the model and are multiples of 12/8, so means over 4, 3 and 2 workers are exact. The replay
knows only which workers were in each sum, and must give the same bits.
"""

import copy
import io
import json
import os
import re
import signal
import sys
import time
import warnings

import numpy as np
import pytest
import torch

from partreduce import Cluster, DistributedOptimizer, RoundSampler, Schedule, load_checkpoint, save_checkpoint
from partreduce.runtime.averaging.bucketed_gradients import LayerSender
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.elastic.regroup import Regroup
from partreduce.runtime.environment import RESTARTED
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.state.saved_state import Handover
from partreduce.runtime.strategies.gradient_average import GradientAverage
from partreduce.runtime.transport.multistage_allreduce import HierarchicalCommunicator
from partreduce.strategies import AllReduce

RATE = 0.25
START = (1.0, -2.0, 0.5)
AWAITED = "awaited"
"""The key of a note in the store: some worker waits for one that shall come back."""


def gradient(rank, step, size=3):
    return tuple(12 / 8 * ((rank + 1) * (step + place) % 7 - 3) for place in range(size))


ALL, LEFT = (0, 1, 2), (0, 2)
"""All workers, and those that remain without worker 1."""
FOUR, THREE = (0, 1, 2, 3), (0, 1, 3)
"""All workers of a run with pairs, and those that remain without worker 2."""
EVEN_ODD = ([(0, 1), (2, 3)], [(0, 3), (1, 2)])
"""Pairs of even and of odd rounds."""


def pairs_until(resume, pairs_of_4, schedule, *, lost=4, before=lambda round_: EVEN_ODD[round_ % 2]):
    """Return a function from a round to its groups.

    They are pairs before round `lost`, `pairs_of_4` before round `resume`, then the schedule's on the three survivors.
    """

    def groups(round_):
        if round_ < lost:
            return before(round_)
        if round_ < resume:
            return pairs_of_4
        return [tuple(THREE[place] for place in group.members) for group in schedule.phase(round_)]

    return groups


def start_of(size):
    return [START[place % len(START)] for place in range(size)]


def at(kind, method, when, number=signal.SIGKILL):
    """Send a signal to this process when a method of a class is called with arguments for which `when` is true."""
    original = getattr(kind, method)

    def die_or_call(self, *arguments, **named):
        if when(self, *arguments, **named):
            os.kill(os.getpid(), number)
        return original(self, *arguments, **named)

    setattr(kind, method, die_or_call)


def fail_after_confirm(round_):
    """Let the confirm of a round of all fail on this worker, after all others have received it."""
    original = Reducer.agree

    def agree(self, kind, in_round, group, *fields, deferred=False):
        original(self, kind, in_round, group, *fields, deferred=deferred)
        if kind == "confirm" and in_round == round_ and len(group.members) == len(ALL):
            operation = self.recorder.begin("confirm that breaks", round_, round_, group.members, 16)
            raise self.outlives.broke(operation, RuntimeError("broken here"))

    Reducer.agree = agree


def ask_late(_round):
    """Let a restarted worker connect only when all others have finished."""
    original = Member.connect_all

    def connect_all(self, reducers, state):
        while not all(self.notes.has(f"left/{rank}") for rank in range(self.world.size) if rank != self.world.rank):
            time.sleep(0.01)
        original(self, reducers, state)

    Member.connect_all = connect_all


def ask_when_awaited():
    """Let a restarted worker connect when another waits for it: after the loss, in a known round."""
    original = Member.connect_all

    def connect_all(self, reducers, state):
        self.notes.wait_for(AWAITED)
        original(self, reducers, state)

    Member.connect_all = connect_all


def fail(_round):
    def begin(*_arguments, **_named):
        raise ZeroDivisionError

    Reducer.begin = begin


def wait_for(optimizer, back):
    """Wait until the workers `back` are members again, or this worker is called to vote for the next generation."""
    member, deadline = optimizer.run.membership, time.monotonic() + 60
    member.notes.write(AWAITED, "1")
    while not (set(back) <= set(member.members) or member.is_called):
        assert time.monotonic() < deadline, f"{back} did not come back"
        time.sleep(0.01)


def is_turn(turn, kind, in_round):
    """Return whether an operation is of this round, or of (round, fragment)."""
    round_, fragment = turn if isinstance(turn, tuple) else (turn, None)
    return in_round == round_ and (fragment is None or kind.endswith(f"fragment {fragment}"))


def is_confirm(turn, in_round, number):
    """Return whether an operation is the confirm of this round or (round, fragment), of two fragments."""
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
    "stopped before mean_model()": lambda _: at(Member, "gathered", lambda *_: True, signal.SIGSTOP),
    "stopped before finish()": lambda _: at(UnevenInputs, "meet", lambda *_: True, signal.SIGSTOP),
    "an error": fail,
}


def launch_workers(work, **options):
    """Run workers; return (exit code, what each worker reported by rank, all output)."""
    output = io.StringIO()
    code = launch(work, threads=1, output=output, **{"num_workers": len(ALL)} | options)
    text = output.getvalue()
    reports = [json.loads(line.split("REPORT ", 1)[1]) for line in text.splitlines() if "REPORT " in line]
    return code, {one["rank"]: one for one in reports}, text


def report(**facts):
    sys.stdout.write(f"REPORT {json.dumps({'rank': int(os.environ['RANK']), **facts})}\n")


class Ended:
    def __init__(self, code, reports, text):
        self.code, self.reports, self.text = code, reports, text
        self.own = {rank: one["own"] for rank, one in reports.items()}
        """Each worker's model before `finish()`, by rank."""
        self.begun = {one["begun"] for one in reports.values()}
        """The steps from which workers continued."""

    @property
    def views(self):
        """The membership as workers heard it: (the turn after which it holds, members)."""
        return [(after, tuple(members)) for after, members in next(iter(self.reports.values()))["views"]]

    def members(self, turn):
        return next(members for after, members in reversed(self.views) if after <= turn)

    def groups(self, turn):
        return [self.members(turn)]

    @property
    def joined(self):
        """(rank, turn, donor) of all workers that joined; a view may lose a worker and take it back."""
        pattern = r"(worker \d(?: and worker \d)*) joined in round (\d+)(?: \(fragment (\d)\))? with the state "
        return [
            (int(rank), 2 * int(round_) + int(fragment) if fragment else int(round_), int(donor))
            for names, round_, fragment, donor in re.findall(pattern + r"of worker (\d), and all", self.text)
            for rank in re.findall(r"\d", names)
        ]

    @property
    def joins(self):
        """By rank, (turn, donor) of the last time that it joined."""
        return {rank: (turn, donor) for rank, turn, donor in self.joined}

    def all_ended_equal(self, steps):
        """Return whether all workers hold the same model after `finish()`, after this many steps."""
        ends = [(one["end"], one["steps"]) for one in self.reports.values()]
        return all(end == (ends[0][0], steps) for end in ends)


def run_to_the_end(deaths, **options):
    """Run workers, check that the exit code is 0, and return the results."""
    ended = run(deaths, **options)
    assert ended.code == 0, ended.text
    return ended


def near(models):
    return {rank: pytest.approx(model, rel=1e-12, abs=1e-12) for rank, model in models.items()}


def run(deaths, *, steps_per_round=1, steps=9, workers=3, max_failures=None, evaluate=(), timeout=60.0, strategy=None,
        failure_plan=None, restarts=0, again=None, back=(), waits_at=6, decays=None, samples=0, nodes=1, size=3,
        dtype=torch.float64, parameters=1, folder=None, saves=False):  # fmt: skip
    """Run workers of which some are killed by `deaths`, and return an `Ended`; `folder` has their checkpoints."""
    again, max_failures = again or {}, workers - 1 if max_failures is None else max_failures

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
        schedule = Schedule("continues", Cluster.regular(nodes, workers // nodes), kind, failure_plan=failure_plan)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE), model, schedule, timeout=timeout)
        means, seen = [], []
        scheduler = None
        if decays:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
            if decays == "handed over":
                optimizer.register_stateful(scheduler)
        begun = 0  # also where a worker joins at another step: it gets no batches for those before
        if folder is not None:
            load_checkpoint(optimizer, folder)
            begun = optimizer.steps
        batches = range(begun, steps)
        if samples:
            sampler = RoundSampler(samples, schedule, 1, shuffle=False)
            batches = torch.utils.data.DataLoader(range(samples), 1, sampler=sampler, drop_last=True)
        for batch in optimizer.batches(batches):
            step = optimizer.steps if samples else batch
            seen += [(step, int(batch))]
            if back and step >= waits_at:
                wait_for(optimizer, back)
            optimizer.zero_grad()
            moves = torch.tensor(gradient(rank, step, size), dtype=dtype).tensor_split(parameters)
            sum((part * move).sum() for part, move in zip(model.values(), moves, strict=True)).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if step in evaluate:
                with optimizer.mean_model():
                    means.append(weights())
        if saves:
            save_checkpoint(optimizer, folder)
        own, in_stages, parts = weights(), _sums_in_stages(optimizer), getattr(optimizer.runner, "parts", [])
        reference = next((part.reference.round for part in parts if part.reference), None)
        optimizer.finish()
        views = getattr(optimizer.run.membership, "views", [])
        report(in_stages=in_stages, reference=reference, own=own, end=weights(), means=means, seen=seen, views=views,
               begun=begun, **optimizer.stats())  # fmt: skip

    options = {"num_workers": workers, "num_nodes": nodes, "max_failures": max_failures, "max_restarts": restarts}
    return Ended(*launch_workers(work, **options))


def _sums_in_stages(optimizer):
    member, world = optimizer.run.membership, optimizer.run.reducer.world
    members = member.members
    return world.has(members) and isinstance(world.communicator(members), HierarchicalCommunicator)


def replayed_gradients(members_of, *, steps, lag=0, warm_up=0, joined=(), size=3, total=False, decays=False):
    """Return the model of all workers before and after `finish()` if averaged gradients are applied `lag` steps late.

    A mean is over the workers that are members when it is applied and took the step.
    """

    def mean(step, turn):
        late = {rank for rank, turn_joined, *_ in joined if step < turn_joined <= turn}
        givers = [rank for rank in members_of(turn) if rank not in late]
        divisor = 1 if total else len(givers)
        return [sum(g) / divisor for g in zip(*(gradient(rank, step, size) for rank in givers), strict=True)]

    own = model = start_of(size)
    for turn in range(steps + lag):
        step, rate = turn if turn < warm_up else turn - lag, RATE * (0.5 ** (turn // 5) if decays else 1)
        if step >= warm_up * (turn >= warm_up):
            model = [x - rate * g for x, g in zip(model, mean(step, turn), strict=True)]
        own = model if turn < steps else own
    return own, model


class Worker:
    """The state of one worker in a replay."""

    def __init__(self, model, fragments):
        self.model, self.start, self.outer_params = (np.array(model) for _ in range(3))
        self.sent, self.momentum = [None] * fragments, np.zeros(len(model))

    def outer_step(self, part, mean, outer):
        moved = mean - self.outer_params[part]
        self.momentum[part] = momentum = float(outer.momentum) * self.momentum[part] + moved
        ahead = moved + float(outer.momentum) * momentum if outer.nesterov else momentum
        self.outer_params[part] += float(outer.lr) * ahead
        return self.outer_params[part]


def replay_means(groups_in, survivors, *, steps_per_round=1, steps=9, gradients=None, fragments=1, outer=None,
                 present=None, overlaps=False, late=0, alpha=0.0, joins=None, decays=False, begun=0, models=None,
                 workers=3, size=3, mean_of=lambda given: np.mean(given, axis=0)):  # fmt: skip
    """Return the survivors' models before `finish()`, by rank; `groups_in(turn)` are the groups that average.

    Fragment p of a model has turn `round * fragments + p`, after (p + 1) / fragments of the round's steps. If the
    average `overlaps` computing, it is of the models at the beginning of the round, else of those `late` steps before;
    `alpha` is the weight of a worker's own model. With `outer` a group makes outer steps if it has as many members as
    are `present` in the turn. `joins` maps the rank of a joining worker to (turn, donor). A run that continues another
    one starts at step `begun` with these `models`.
    """
    if gradients or (gradients is None and steps_per_round == 1):
        own = replayed_gradients(lambda turn: groups_in(turn)[0], steps=steps, size=size, decays=decays)[0]
        return dict.fromkeys(survivors, own)
    models = models or {rank: start_of(size) for rank in range(workers)}
    everyone, moves = {rank: Worker(model, fragments) for rank, model in models.items()}, {}
    parts = np.array_split(np.arange(size), fragments)
    ends = [(number + 1) * steps_per_round // fragments for number in range(fragments)]
    for step in range(begun, steps):
        round_, taken = step // steps_per_round, step % steps_per_round + 1
        for rank, worker in everyone.items():
            worker.start = worker.model if taken == 1 else worker.start
            moves[rank] = -RATE * np.array(gradient(rank, step, size))
            worker.model = worker.model + moves[rank]
        for number, part in enumerate(parts):
            if ends[number] != taken:
                continue
            turn = round_ * fragments + number
            for rank, (joined, donor) in (joins or {}).items():
                if joined == turn:
                    everyone[rank] = copy.deepcopy(everyone[donor])
                    everyone[rank].model += moves[rank]
            for members in groups_in(turn):
                group = [everyone[rank] for rank in members]
                given = [one.start if overlaps else one.sent[number] if late else one.model[part] for one in group]
                if any(one is None for one in given):
                    continue  # nothing was sent yet
                mean = mean_of(given)
                for worker in group:
                    if outer is not None and (present is None or len(members) == present(turn)):
                        value = worker.outer_step(part, mean, outer)
                    else:
                        value = worker.model + mean - worker.start if overlaps else mean
                    worker.model[part] = alpha * worker.model[part] + (1 - alpha) * value
        for number, part in enumerate(parts) if late else ():
            if (taken + late - ends[number]) % steps_per_round == 0:
                for worker in everyone.values():
                    worker.sent[number] = worker.model[part].copy()
    return {rank: everyone[rank].model.tolist() for rank in survivors}


def replayed_by_steps(members_of, survivors, *, worker_steps, rounds, joins=None, size=3):
    """Return the survivors' models before `finish()`, by rank, for step-normalized averages.

    A joining worker adds one step to its donor's progress, which is in the donor's own number of steps.
    """
    models = {rank: np.array(start_of(size)) for rank in range(len(worker_steps))}
    for round_ in range(rounds):
        members, sent = members_of(round_), {}
        mean_steps = np.mean([worker_steps[rank] for rank in members])
        for rank, model in models.items():
            steps = range(round_ * worker_steps[rank], (round_ + 1) * worker_steps[rank])
            progress = sum(-RATE * np.array(gradient(rank, step, size)) for step in steps)
            sent[rank] = model + progress * mean_steps / worker_steps[rank]
        for rank, (joined, donor) in (joins or {}).items():
            if joined == round_:
                last = -RATE * np.array(gradient(rank, (round_ + 1) * worker_steps[rank] - 1, size))
                given = models[donor] + (sent[donor] - models[donor]) * worker_steps[donor] / mean_steps
                sent[rank] = given + last * (mean_steps if worker_steps[rank] == 1 else 1)
        mean = np.mean([sent[rank] for rank in members], axis=0)
        models = {rank: mean if rank in members else sent[rank] for rank in models}
    return {rank: models[rank].tolist() for rank in survivors}
