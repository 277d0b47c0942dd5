"""The reference of the conformance suite: plain torch on threads that exchange vectors; it uses no code of the runtime.

A `PlainOptimizer` implements the definition of a kind: the mean gradient before the step, or that of some steps ago
(Algorithm 1 of Pipe-SGD); x ← W x after a round, with late averaging x ← W x_before + u; an outer step when all average
(DiLoCo); fragments in turn, merged late (Algorithm 2 of Streaming DiLoCo); a server's sum of progress, a pair's mean.
With a codec it rounds what is sent, in NumPy, as docs/codecs.md defines. Groups under `dynamic_groups` are known only
after a run, so the reference averages over those that the runtime reports.
"""

import contextlib
import copy
import threading

import numpy as np
import torch

from helpers.coded_sums import add_in_order, round_by_codec
from partreduce import strategies as st
from partreduce.topo.strategies.payload import assign

WAIT = 30
HOST = 0
"""The asynchronous server's host, and the passive worker of pairwise averaging: worker 0 has the first turn."""


class Table:
    """The shared data of a reference's threads.

    `groups` lists, for each worker, the groups that ran under `dynamic_groups`, as (steps before it, whether it ended a
    round, number, members).
    """

    def __init__(self, workers, groups=None):
        self.barrier = threading.Barrier(workers)
        self.groups = groups or ((),) * workers
        self.meetings = {}
        self.lock = threading.Lock()
        self.places = [None] * workers
        self.models = [[None] * workers for _ in range(2)]
        """For each optimizer: the server's model at index `HOST`, or the models of pairwise averaging."""

    def exchange(self, rank, value):
        self.places[rank] = value
        self.barrier.wait(WAIT)
        everything = list(self.places)
        self.barrier.wait(WAIT)
        return everything

    def meet(self, rank, number, members, vector):
        """Return the mean of the members' vectors; all members of the group must call it."""
        with self.lock:
            barrier, vectors = self.meetings.setdefault(number, (threading.Barrier(len(members)), {}))
            vectors[rank] = vector
        barrier.wait(WAIT)
        return sum(vectors[member] for member in members) / len(members)


class PlainOptimizer:
    """The reference's optimizer of one worker."""

    def __init__(self, kind, table, rank, inner, model, *, number=0):
        self.kind, self.table, self.rank, self.inner = kind, table, rank, inner
        self.strategy, self.steps_per_round = kind.strategy, kind.steps_of(rank)
        self.models = table.models[number]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.steps = 0
        self.start = None
        """The model at the beginning of the round, or from which a kind without common rounds counts progress."""
        named = [((name,), p.numel()) for name, p in model.named_parameters() if p.requires_grad]
        of_parameters = assign(self.strategy.payload.fragments, named)
        places = torch.tensor([place for place, (_, n) in zip(of_parameters, named, strict=True) for _ in range(n)])
        self.fragments = [places == number for number in range(max(of_parameters) + 1)]
        """For each fragment, a mask of the model's numbers."""
        self.outer_params = self.outer = None
        """For each fragment, the outer parameters as a torch parameter, and the outer optimizer of it."""
        self.references = [None] * len(self.fragments)
        """For each fragment, the last mean of all workers; a codec sends the change since then."""
        self.left = {}
        """By fragment, the rounding errors (error feedback) of this worker's message and of the sum."""
        self.sent = {}
        """By fragment, the mean that is not applied yet."""
        self.averaged = False
        self.late = []
        """Mean gradients that are not applied yet, oldest first."""
        self.taken = 0
        """The number of groups under `dynamic_groups` in which this worker has averaged."""

    # The model as a vector

    def get(self):
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def put(self, vector):
        with torch.no_grad():
            for p, part in zip(self.parameters, vector.split([p.numel() for p in self.parameters]), strict=True):
                p.copy_(part.view(p.shape))

    # Methods that a training loop calls

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none=set_to_none)

    def mean_of(self, members, vector, number=0):
        """Return the mean over `members`; all workers call it, and a worker passes a group that contains it."""
        if self.strategy.transport.codec is st.Codec.NONE:
            sent = self.table.exchange(self.rank, vector)
            return sum(sent[member] for member in members) / len(members)
        reference = self.outer_params[number].detach() if self.outer else self.references[number]
        moved = self.coded_sum(members, (vector - reference) / len(members), number)
        if len(members) == 1:
            return vector
        if len(members) == self.kind.workers:
            self.references[number] = reference + moved
        return reference + moved

    def coded_sum(self, members, vector, number=0):
        """Return the members' sum with a codec: each vector and the total are rounded, with error feedback."""
        transport = self.strategy.transport
        assert vector.numel() <= transport.block, "one block, so that its places in an array do not matter"
        assert transport.codec.has_blocks or len(members) <= 2, "a ring of more has no one order of additions"

        def round_and_keep(values, left):
            values = values + left
            code = round_by_codec(values, transport.codec, transport.block)
            return code, (values - code) * transport.error_feedback

        own_left, sum_left = self.left.get(number, (0, 0))
        code, own_left = round_and_keep(vector.numpy().astype(np.float32), own_left)
        codes = self.table.exchange(self.rank, code)
        total, sum_left = round_and_keep(add_in_order(np.stack([codes[member] for member in members])), sum_left)
        self.left[number] = own_left, sum_left
        return torch.from_numpy(total).to(vector.dtype)

    def mean_of_all(self, vector, number=0):
        return self.mean_of(range(self.kind.workers), vector, number)

    def average_gradients(self):
        if not self.kind.gradients or self.averaged:
            return
        self.averaged = True
        sync, pipelined = self.strategy.sync, self.kind.lag > 0
        divisor = 1 if pipelined and sync.total is st.GradientReduction.SUM else self.kind.workers
        own = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
        theirs = self.table.exchange(self.rank, [own, [p.grad is not None for p in self.parameters]])
        if self.strategy.transport.codec is st.Codec.NONE:
            totals = [sum(several) / divisor for several in zip(*(gradients for gradients, _ in theirs), strict=True)]
        else:
            flat = torch.cat([gradient.reshape(-1) for gradient in own]) / divisor
            total = self.coded_sum(range(self.kind.workers), flat).split([p.numel() for p in self.parameters])
            totals = [part.view(p.shape) for part, p in zip(total, self.parameters, strict=True)]
        somewhere = [any(present) for present in zip(*(present for _, present in theirs), strict=True)]
        means = [total if known else None for total, known in zip(totals, somewhere, strict=True)]
        if pipelined and self.steps >= sync.warm_up:
            self.late.append(means)
            zeros = [torch.zeros_like(p) for p in self.parameters]
            means = self.late.pop(0) if len(self.late) > self.kind.lag else zeros
        self.set_gradients(means)

    def set_gradients(self, gradients):
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient

    def apply_late_gradients(self):
        is_dropped = self.kind.lag and self.strategy.sync.drain is st.DrainPolicy.DROP
        for gradients in [] if is_dropped else self.late:
            self.set_gradients(gradients)
            self.inner.step()
        self.late = []

    def skip(self):
        if self.kind.gradients:
            self.zero_grad(set_to_none=False)
        self.step(apply=self.kind.gradients)

    def step(self, closure=None, *, apply=True):
        if self.kind.gradients:
            if closure is not None:
                with torch.enable_grad():
                    closure()
            self.average_gradients()
            self.averaged = False
            if apply:
                self.inner.step()
        else:
            self.begin()
            if apply:
                self.inner.step(*([] if closure is None else [closure]))
        self.steps += 1
        if not self.kind.gradients:
            self.take_turns()

    def scaler_step(self, scaler):
        """Do what GradScaler.step does: divide gradients by the scale, and skip the step if one is infinite."""
        scale = scaler.get_scale()
        for p in self.parameters:
            if p.grad is not None:
                p.grad /= scale
        self.average_gradients()
        self.step(apply=all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None))

    def serve(self, batches):
        """Take part without data until the last round ends: in averages, or in the other workers' gradient steps.

        `batches` lists the number of batches of each worker.
        """
        rounds = max(-(-count // self.kind.steps_of(rank)) for rank, count in enumerate(batches))
        while self.steps < rounds * self.steps_per_round and not self.kind.in_turn:
            if self.kind.free == "dynamic_groups":
                self.follow(at_end=False)  # the runtime does so before it checks for another round
            if self.kind.gradients:
                self.skip()
            else:
                self.step(apply=False)
        self.apply_late_gradients()

    def to_mean(self):
        self.settle()
        self.put(sum(self.table.exchange(self.rank, self.get())) / self.kind.workers)

    @contextlib.contextmanager
    def mean_model(self):
        self.settle()
        own = self.get()
        self.to_mean()
        yield
        self.put(own)

    def finish(self):
        self.apply_late_gradients()
        self.to_mean()

    def state_dict(self):
        late = [[None if g is None else g.clone() for g in gradients] for gradients in self.late]
        outer = self.outer and copy.deepcopy(
            ([outer_params.detach() for outer_params in self.outer_params], self.sent, self.outer)
        )
        outer = outer and (*outer[:2], [one.state_dict() for one in outer[2]])
        return {"inner": self.inner.state_dict(), "steps": self.steps, "late": late, "outer": outer}

    def load_state_dict(self, state):
        self.inner.load_state_dict(copy.deepcopy(state["inner"]))
        self.follow(at_end=False)
        self.steps, self.start, self.late = state["steps"], None, list(state["late"])
        self.outer, self.sent = None, {}
        if state["outer"]:
            outer_params, self.sent, momenta = copy.deepcopy(state["outer"])
            self.take_outer_params(outer_params)
            for one, its in zip(self.outer, momenta, strict=True):
                one.load_state_dict(its)

    # Methods of the kinds

    def take_outer_params(self, vectors):
        self.outer_params = [torch.nn.Parameter(vector) for vector in vectors]
        self.outer = [torch.optim.SGD([outer_params], **self.kind.outer) for outer_params in self.outer_params]

    def outer_step(self, mean, number=0):
        """Take DiLoCo's outer step, with the gradient outer parameters − mean, and return the new outer parameters."""
        outer_params = self.outer_params[number]
        outer_params.grad = outer_params.detach() - mean
        self.outer[number].step()
        return outer_params.detach().clone()

    def begin(self):
        if self.kind.outer and self.outer is None:
            self.take_outer_params([self.get()[mask] for mask in self.fragments])
        if self.references[0] is None:
            self.references = [self.get()[mask] for mask in self.fragments]
        if self.start is None:
            self.start = self.get()
            if self.kind.free == "pairwise" or (self.kind.free == "server" and self.rank == HOST):
                self.models[self.rank] = self.start.clone()

    def take_turns(self):
        """After a step, send or average the fragments whose turn it is; a model without fragments is one fragment."""
        for number, mask in enumerate(self.fragments):
            end = self.steps_per_round * (number + 1) // len(self.fragments)
            ends = (self.steps - end) % self.steps_per_round == 0
            if self.kind.merges:
                self.merge(number, mask, end, ends=ends)
            elif ends and self.kind.free:
                self.average_freely()
            elif ends:
                self.average(number, mask)

    def merge(self, number, mask, end, *, ends):
        """Send a fragment some steps before its turn ends, and mix the mean into the model when the turn ends."""
        sync = self.strategy.sync
        if (self.steps + sync.steps - end) % self.steps_per_round == 0 and self.steps + sync.steps >= end:
            self.sent[number] = self.mean_of_all(self.get()[mask], number)
        if ends and number in self.sent:  # the first round may have nothing to merge yet
            mean = self.sent.pop(number)
            mean = self.outer_step(mean, number) if self.outer else mean
            now = self.get()
            now[mask] = mean + float(sync.alpha) * (now[mask] - mean)
            self.put(now)

    def average(self, number, mask):
        """Apply x ← W x of one round to the numbers in `mask`; for late averages x ← W x_before + u."""
        round_ = (self.steps - 1) // self.steps_per_round
        now, start = self.get()[mask], self.start[mask]
        if self.strategy.averaging is st.Averaging.STEP_NORMALIZED:
            counted = [self.kind.steps_of(rank) for rank in self.counted_together(round_)]
            now = start + sum(counted) / len(counted) / self.steps_per_round * (now - start) if counted else now
        own = start if self.kind.late else now
        if self.strategy.kind == "neighbor":
            sent = self.table.exchange(self.rank, own)
            mixed = own + sum(weight * (sent[source] - own) for source, weight in self.edges_of(round_))
        else:
            members, relaxation = self.group_of(round_)
            mean = self.mean_of(members, own, number)
            is_own = self.strategy.payload.outer.outer_params is st.OuterParams.PER_WORKER and len(members) > 1
            if self.outer and (is_own or len(members) == self.kind.workers):
                mean = self.outer_step(mean, number)
            mixed = mean if relaxation == 1 else own + relaxation * (mean - own)
        whole = self.get()
        whole[mask] = mixed + now - start if self.kind.late else mixed
        self.put(whole)
        self.start[mask] = whole[mask]

    def group_of(self, round_):
        """Return this worker's group in a round as (members, relaxation); the worker alone if it has none."""
        if self.strategy.kind in ("allreduce", "server") or round_ < self.strategy.prologue:
            return range(self.kind.workers), 1
        phases = self.strategy.phases.phases
        for group in phases[(round_ - self.strategy.prologue) % len(phases)]:
            if self.rank in group.members:
                return group.members, float(group.relaxation)
        return (self.rank,), 1

    def edges_of(self, round_):
        """Return (source, weight) of each edge to this worker in a round."""
        edges = self.strategy.rounds[round_ % len(self.strategy.rounds)].edges()
        return [(source, float(weight)) for source, target, weight in edges if target == self.rank]

    def counted_together(self, round_):
        """Return the workers over whose steps per round step-normalized averaging takes the mean."""
        if self.strategy.kind != "neighbor":
            members, _ = self.group_of(round_)
            return members
        edges = self.strategy.rounds[round_ % len(self.strategy.rounds)].edges()
        touched = any(self.rank in edge[:2] for edge in edges)
        return range(self.kind.workers) if touched else ()

    def average_freely(self):
        models = self.models
        if self.kind.free == "dynamic_groups":
            self.follow(at_end=True)
            return
        models[HOST if self.kind.free == "server" else self.rank] += self.get() - self.start
        if self.kind.free == "server":
            self.put(models[HOST])
        else:
            if self.rank != HOST:
                models[self.rank] = (models[self.rank] + models[HOST]) / 2
                models[HOST] = models[self.rank].clone()
            self.put(models[self.rank])
        self.start = self.get()

    def follow(self, *, at_end):
        """Average with the `dynamic_groups` that ran after this many steps, at a round's end or before a pause."""
        mine = self.table.groups[self.rank]
        while self.taken < len(mine) and mine[self.taken][:2] == (self.steps, at_end):
            self.put(self.table.meet(self.rank, *mine[self.taken][2:], self.get()))
            self.taken += 1

    def settle(self):
        """Take the newest average, plus the worker's progress since then."""
        if self.kind.free == "dynamic_groups":
            self.follow(at_end=False)
        elif self.kind.free and self.start is not None:
            newest = self.models[HOST if self.kind.free == "server" else self.rank]
            self.put(newest + self.get() - self.start)
            self.start = newest.clone()
