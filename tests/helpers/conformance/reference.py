"""The reference: plain torch on three threads that exchange vectors over a barrier; nothing of the run-time is used.

A `PlainOptimizer` does by the book what a kind promises: the mean gradient before the step, x ← W x after a round, with
late averaging x ← W x_before + u, a server's sum of progress, or a pair's mean. The groups of a generated schedule are
known afterwards only, so the reference forms the means of those that the run-time reports to have run.
"""

import contextlib
import copy
import threading

import torch

from helpers.conformance.kinds import MEAN, N
from partreduce.topo.strategies.payload import assign

WAIT = 30
HOST = 0
"""The first worker is the asynchronous server's host and pairwise's passive worker, so that its turn comes first."""


class Table:
    """Where the threads of a reference lay down what the others may see.

    `groups` are those of a generated schedule: for each worker (steps, whether at a round's end, number, members).
    """

    def __init__(self, groups=((),) * N):
        self.barrier = threading.Barrier(N)
        self.groups = groups
        self.meetings = {}
        self.lock = threading.Lock()
        self.places = [None] * N
        self.models = [[None] * N for _ in range(2)]
        """For each optimizer the server's model at `HOST`, or pairwise's models."""

    def exchange(self, rank, value):
        self.places[rank] = value
        self.barrier.wait(WAIT)
        everything = list(self.places)
        self.barrier.wait(WAIT)
        return everything

    def meet(self, rank, number, members, vector):
        """The mean over a group that all its members come to."""
        with self.lock:
            barrier, said = self.meetings.setdefault(number, (threading.Barrier(len(members)), {}))
            said[rank] = vector
        barrier.wait(WAIT)
        return sum(said[member] for member in members) / len(members)


class PlainOptimizer:
    """An optimizer that trains one of three models as a kind says."""

    def __init__(self, kind, table, rank, inner, model, *, number=0):
        self.kind, self.table, self.rank, self.inner = kind, table, rank, inner
        self.models = table.models[number]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.steps = 0
        self.start = None
        """Late: where the round began. Free kinds: where progress is counted from."""
        named = [((name,), p.numel()) for name, p in model.named_parameters() if p.requires_grad]
        places = [place for place, (_, size) in zip(assign(kind.turns, named), named, strict=True) for _ in range(size)]
        self.fragments = [torch.tensor(places) == number for number in range(kind.turns)]
        """Which numbers of the model each holds."""
        self.outer_params = self.outer = None
        """The model of the last outer step as a parameter, and the optimizer that makes the next one of it; of each
        fragment."""
        self.sent = None
        """The mean of the fragment that is in flight."""
        self.averaged = False
        self.late = []
        """Mean gradients that are still to be applied, oldest first."""
        self.taken = 0
        """Groups of a generated schedule that this worker has done."""

    # The model as a vector

    def get(self):
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def put(self, vector):
        with torch.no_grad():
            for p, part in zip(self.parameters, vector.split([p.numel() for p in self.parameters]), strict=True):
                p.copy_(part.view(p.shape))

    # What a training loop calls

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none=set_to_none)

    def average_gradients(self):
        if self.kind.gradients and not self.averaged:
            theirs = self.table.exchange(
                self.rank, [None if p.grad is None else p.grad.clone() for p in self.parameters]
            )
            means = []
            for index in range(len(self.parameters)):
                present = [gradients[index] for gradients in theirs if gradients[index] is not None]
                means.append(sum(present) / N if present else None)
            self.late.append(means)
            zeros = [torch.zeros_like(p) for p in self.parameters]
            self.set_gradients(self.late.pop(0) if len(self.late) > self.kind.lag else zeros)
            self.averaged = True

    def set_gradients(self, gradients):
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient

    def apply_what_is_late(self):
        for gradients in self.late:
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
        if self.kind.turns > 1:
            self.take_turns()
        elif self.steps % self.kind.steps_per_round == 0 and not self.kind.gradients:
            self.end_round()

    def scaler_step(self, scaler):
        """What GradScaler.step does: divide by the scale, and leave out a step with an infinite gradient."""
        scale = scaler.get_scale()
        for p in self.parameters:
            if p.grad is not None:
                p.grad /= scale
        self.average_gradients()
        self.step(apply=all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None))

    def serve(self, steps):
        """Data ended: the model stays in the averages, or follows the others' gradients."""
        steps = -(-steps // self.kind.steps_per_round) * self.kind.steps_per_round  # to the end of its round
        while self.steps < steps and self.kind.free not in ("server", "pairwise"):
            if self.kind.free == "dynamic_groups":
                self.follow(at_end=False)  # it leaves the generator before it looks whether there is another round
            if self.kind.gradients:
                self.skip()
            else:
                self.step(apply=False)
        self.apply_what_is_late()

    @contextlib.contextmanager
    def mean_model(self):
        self.settle()
        own = self.get()
        self.put(sum(self.table.exchange(self.rank, own)) / N)
        yield
        self.put(own)

    def finish(self):
        self.apply_what_is_late()
        self.settle()
        self.put(sum(self.table.exchange(self.rank, self.get())) / N)

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
        self.outer = self.sent = None
        if state["outer"]:
            outer_params, self.sent, momenta = copy.deepcopy(state["outer"])
            self.take_outer_params(outer_params)
            for one, its in zip(self.outer, momenta, strict=True):
                one.load_state_dict(its)

    # What a kind does

    def take_outer_params(self, vectors):
        self.outer_params = [torch.nn.Parameter(vector) for vector in vectors]
        self.outer = [torch.optim.SGD([outer_params], **self.kind.outer) for outer_params in self.outer_params]

    def outer_step(self, mean, number=0):
        """DiLoCo's: the gradient is what the workers moved on average, backwards."""
        outer_params = self.outer_params[number]
        outer_params.grad = outer_params.detach() - mean
        self.outer[number].step()
        return outer_params.detach().clone()

    def take_turns(self):
        """Streaming DiLoCo: a step after a fragment was sent it is half of its own and half of its outer parameters."""
        place = (self.steps - 1) % self.kind.steps_per_round + 1
        for number, mask in enumerate(self.fragments):
            end = self.kind.steps_per_round * (number + 1) // self.kind.turns
            if place == end - 1:
                self.sent = sum(self.table.exchange(self.rank, self.get()[mask])) / N
            if place == end and self.sent is not None:
                now = self.get()
                now[mask] = (now[mask] + self.outer_step(self.sent, number)) / 2
                self.put(now)

    def begin(self):
        if self.kind.outer and self.outer is None:
            self.take_outer_params([self.get()[mask] for mask in self.fragments])
        if self.start is None:
            self.start = self.get()
            if self.kind.free == "pairwise" or (self.kind.free == "server" and self.rank == HOST):
                self.models[self.rank] = self.start.clone()

    def end_round(self):
        models = self.models
        if self.kind.free == "server":
            models[HOST] = models[HOST] + self.get() - self.start
            self.put(models[HOST])
            self.start = self.get()
        elif self.kind.free == "pairwise":
            models[self.rank] = models[self.rank] + self.get() - self.start
            if self.rank != HOST:
                models[self.rank] = models[HOST] = (models[self.rank] + models[HOST]) / 2
            self.put(models[self.rank])
            self.start = self.get()
        elif self.kind.free == "dynamic_groups":
            self.follow(at_end=True)
        else:
            round_ = self.steps // self.kind.steps_per_round - 1
            weights = self.kind.matrices[round_ % len(self.kind.matrices)][self.rank]
            now = self.get()
            sent = self.table.exchange(self.rank, self.start if self.kind.late else now)
            mixed = sum(weight * vector for weight, vector in zip(weights, sent, strict=True))
            if self.outer and list(weights) == MEAN[0]:
                mixed = self.outer_step(mixed)
            self.put(mixed + now - self.start if self.kind.late else mixed)
            self.start = self.get()

    def follow(self, *, at_end):
        """Average with the groups that ran after these steps, at a round's end or before a pause of all."""
        mine = self.table.groups[self.rank]
        while self.taken < len(mine) and mine[self.taken][:2] == (self.steps, at_end):
            self.put(self.table.meet(self.rank, *mine[self.taken][2:], self.get()))
            self.taken += 1

    def settle(self):
        """The newest model, with what was learned since."""
        if self.kind.free == "dynamic_groups":
            self.follow(at_end=False)
        elif self.kind.free and self.start is not None:
            newest = self.models[HOST if self.kind.free == "server" else self.rank]
            self.put(newest + self.get() - self.start)
            self.start = newest.clone()
