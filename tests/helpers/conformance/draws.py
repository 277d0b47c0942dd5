"""Schedules and training loops drawn from a seed, by family: groups, graphs, outer steps, fragments and pipelines.

A drawn schedule varies every field that its reference knows. A drawn loop combines what users' loops do: clipping, a
decreasing learning rate, skipped steps, an evaluation and a checkpoint in the middle, and uneven data.
"""

import contextlib
import random
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch

from helpers.conformance.cells import TOGETHER, problem_of, run_reference, run_time
from helpers.conformance.kinds import Kind
from partreduce import Cluster
from partreduce import strategies as st
from partreduce.errors import ScheduleError
from partreduce.topo.metrics.stability import outer_radius

LAYERS = ("0", "1", "2", "3")
"""The names of the layers of the model below, in order."""
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.02),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.05),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, nesterov=True),
}
RELAXATIONS = (1, 1, "1/2", "3/2", "4/3", "2/3", "1/10", "7/4")
MEANS = (st.Averaging.MEAN, st.Averaging.MEAN, st.Averaging.STEP_NORMALIZED)


@dataclass(frozen=True)
class DrawnCase(Kind):
    """A drawn schedule with a drawn training loop; the method `loop` is its idiom."""

    seed: int = 0
    batches: tuple[int, ...] = ()
    """Each worker's number of batches; a worker with fewer takes part without data until all have ended."""
    inner: str = "sgd"
    clip: str = ""
    """How gradients are clipped: each worker's own by `norm` or `value`, or the `mean` by value; "" for none."""
    decay: float = 1.0
    """The factor by which the learning rate is multiplied in each step."""
    skips: frozenset = field(default_factory=frozenset)
    """The (worker, step) of skipped steps."""
    absent: frozenset = field(default_factory=frozenset)
    """The (worker, step) in which the last bias has no gradient."""
    reopens: tuple[int, ...] = ()
    """For each worker, the steps after which the run is saved and continued from the checkpoint."""
    dtype: torch.dtype = torch.float64

    @property
    def is_uneven(self):
        return len({count * self.steps_of(0) / self.steps_of(rank) for rank, count in enumerate(self.batches)}) > 1

    def begin(self, cell):
        own = cell.rank if self.options.get("initial") == "keep" else 0
        generator = torch.Generator().manual_seed(self.seed + 1000 * own)  # workers are threads, which share torch's
        sizes = [(3, 4), (4, 4), (4, 2), (2, 1)]
        model = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes)).to(self.dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
        return model, cell.wrap(OPTIMIZERS[self.inner](model.parameters()), model)

    def backward(self, model, rank, step):
        generator = torch.Generator().manual_seed(1000 * self.seed + 20 * step + 2 * rank)
        inputs = outputs = torch.randn(6, 3, generator=generator, dtype=torch.float64).to(self.dtype)
        for layer in model:
            outputs = torch.tanh(layer(outputs))
        (0.5 * (outputs[:, 0] - (inputs.sum(1) + rank).sin()).square().mean()).backward()

    def step(self, cell, model, optimizer, step):
        optimizer.zero_grad()
        skips = (cell.rank, step) in self.skips
        if not (skips and self.early):
            self.backward(model, cell.rank, step)
        if (cell.rank, step) in self.absent:
            model[3].bias.grad = None
        if skips:
            optimizer.skip()
        else:
            if self.clip == "mean":
                optimizer.average_gradients()
            if self.clip == "norm":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            elif self.clip:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= self.decay
        cell.note(model)

    def loop(self, cell):
        model, optimizer = self.begin(cell)
        first = self.reopens[cell.rank] if self.reopens else 0
        for step in range(first):
            self.step(cell, model, optimizer, step)
        if first:
            with optimizer.mean_model():
                cell.note(model)
            model, optimizer = cell.reopened(model, optimizer, lambda: self.begin(cell))
        with cell.join(optimizer, self.batches) if self.is_uneven else contextlib.nullcontext():
            for step in range(first, self.batches[cell.rank]):
                self.step(cell, model, optimizer, step)
        cell.note(model)
        yield TOGETHER
        optimizer.finish()
        cell.note(model)


def problems(ranks, case, folder):
    """Return for each worker how a drawn run differs from the reference's; empty if it does not."""
    is_exact = case.dtype == torch.float64 and case.strategy.transport.codec is st.Codec.NONE
    near = {} if is_exact else {"rtol": 1e-4, "atol": 1e-5}
    results = run_time(ranks, case.loop, case, folder=folder)
    wanted = run_reference(case.loop, case)
    found = [problem_of(mine, should, **near) for (mine, _), should in zip(results, wanted, strict=True)]
    return [f"worker {rank}: {problem} in {case}" for rank, problem in enumerate(found) if problem]


def _of_all(phase):
    return len(phase) == 1 and len(phase.members) == phase.num_workers


def _phase(rng, n):
    ranks, groups = rng.sample(range(n), n), []
    while len(ranks) >= 2 and rng.random() < 0.9:
        size = rng.randint(2, len(ranks))
        members, ranks = ranks[:size], ranks[size:]
        groups.append(st.Group(tuple(sorted(members)), Fraction(rng.choice(RELAXATIONS))))
    return st.Phase.from_groups(n, groups)


def _draw_loop(rng, seed, n, strategy, *, rounds, **loop):
    """Draw a training loop for a strategy, with uneven data or not; steps are skipped where the strategy allows it."""
    kind = Kind(strategy, Cluster.regular(1, n))
    counts = [rounds] * n if rng.random() < 0.6 else [rng.randint(0, rounds) for _ in range(n)]
    batches = tuple(count * kind.steps_of(rank) for rank, count in enumerate(counts))
    batches = batches if max(batches) else tuple(rounds * kind.steps_of(rank) for rank in range(n))
    cells = [(rank, step) for rank in range(n) for step in range(batches[rank])]
    loop = {"inner": rng.choice(["adamw", "sgd", "momentum"]), "clip": rng.choice(["", "norm"])} | loop
    return DrawnCase(
        strategy,
        kind.cluster,
        seed=seed,
        batches=batches,
        decay=rng.choice([1, 0.8]),
        skips=frozenset(cell for cell in cells if rng.random() < 0.05),
        **loop,
    )


def _draw_checkpoint(rng, case, *, inside=True):
    """Add to some cases a checkpoint after some whole rounds of all workers, or inside a round if `inside`."""
    steps = [case.steps_of(rank) for rank in range(case.workers)]
    rounds = min(count // own for count, own in zip(case.batches, steps, strict=True))
    quarters = rng.randrange(4) if inside else 0
    if rng.random() < 0.5 or not rounds:
        return case
    done = rng.randrange(rounds)
    reopens = tuple(done * own + quarters * own // 4 for own in steps)
    return replace(case, reopens=reopens) if min(reopens) else case


def groups(seed):
    """Draw groups with skips, relaxations, a prologue, late averages, and steps per round that differ by worker."""
    rng = random.Random(f"groups {seed}")
    return _of_own_models(rng, _draw_loop(rng, seed, *_groups(rng), rounds=rng.randint(1, 5)))


def _groups(rng):
    n = rng.randint(2, 6)
    steps = tuple(rng.choice([1, 1, 2, 3]) for _ in range(n)) if rng.random() < 0.4 else rng.choice([1, 1, 2, 4])
    sync = st.DelayedAveraging() if rng.random() < 0.4 else st.Synchronous()
    axes = {"steps_per_round": steps, "sync": sync, "averaging": rng.choice(MEANS)}
    if rng.random() < 0.16:
        hosts = tuple(rng.sample(range(n), rng.randint(1, n)))
        strategy = rng.choice([st.AllReduce(**axes), st.Server(hosts=hosts, **axes)])
    else:
        phases = st.GroupPhases(tuple(_phase(rng, n) for _ in range(rng.randint(1, 3))))
        strategy = st.StaticGroups(phases=phases, prologue=rng.choice([0, 0, 1]), **axes)
    return n, strategy


def coded_groups(seed):
    """Draw groups with a codec, which sends the change since all workers were last equal."""
    rng = random.Random(f"coded {seed}")
    codec = (st.Codec.INT8, st.Codec.INT4, *SIXTEEN_BITS)[seed % 4]
    while True:
        n, strategy = _groups(rng)
        if (n > 2 and not codec.has_blocks) or strategy.averages_gradients:
            continue  # a 16-bit ring of more than two workers has no fixed order of additions
        if strategy.kind == "static":
            phases = list(strategy.phases.phases)
            phases.insert(rng.randint(0, len(phases)), st.Phase.from_groups(n, [range(n)]))
            strategy = replace(strategy, phases=st.GroupPhases(tuple(phases)))
        with contextlib.suppress(ScheduleError):
            case = _draw_loop(
                rng, seed, n, replace(strategy, transport=st.Transport(codec=codec)), rounds=rng.randint(1, 6)
            )
            case.schedule  # noqa: B018 - it checks
            return _draw_checkpoint(rng, case)


def graphs(seed):
    """Draw rounds over directed or symmetric graphs, some of them without edges."""
    rng = random.Random(f"graphs {seed}")
    n, rounds = rng.randint(2, 6), []
    for _ in range(rng.randint(1, 3)):
        edges = [(s, t) for s in range(n) for t in range(n) if s != t and rng.random() < rng.choice([0.0, 0.3, 0.9])]
        if rng.random() < 0.3:
            edges = sorted({edge for s, t in edges for edge in ((s, t), (t, s))})
        rounds.append(st.Round.from_edges(n, [(s, t, Fraction(rng.randint(1, 4), 4 * n)) for s, t in edges]))
    strategy = st.NeighborAveraging(
        rounds=tuple(rounds),
        steps_per_round=tuple(rng.randint(1, 3) for _ in range(n)) if rng.random() < 0.4 else rng.choice([1, 1, 2]),
        sync=st.DelayedAveraging() if rng.random() < 0.5 else st.Synchronous(),
        averaging=rng.choice(list(st.Averaging)),
    )
    return _of_own_models(rng, _draw_loop(rng, seed, n, strategy, rounds=rng.randint(1, 5)))


def _of_own_models(rng, case):
    """Let workers begin with different models in half of all runs, in float32 in some, and resume some."""
    if case.gradients:
        return replace(case, clip="", decay=1.0)
    if case.inner == "sgd" and rng.random() < 0.3:
        case = replace(case, dtype=torch.float32)
    if rng.random() < 0.5:
        case = replace(case, options={"initial": "keep"})
    return _draw_checkpoint(rng, case)


def _outer(rng, momenta):
    momentum = rng.choice(momenta)
    rate = rng.choice([0.3, 0.7, 1, 1.25])
    return st.OuterStep(lr=rate, momentum=momentum, nesterov=momentum > 0 and rng.random() < 0.6)


def outer(seed):
    """Draw outer steps of all workers, or of groups with their own outer parameters, with 1 to 5 steps per round."""
    rng = random.Random(f"outer {seed}")
    n, step = rng.randint(2, 4), _outer(rng, [0, 0, 0.5, 0.9])
    steps = rng.choice([1, 2, 3, 5, tuple(rng.randint(1, 4) for _ in range(n))])
    axes = {"steps_per_round": steps, "averaging": rng.choice(MEANS), "payload": st.Payload(outer=step)}
    if rng.random() < 0.4:
        strategy: st.AllReduce | st.StaticGroups = st.AllReduce(**axes)
        if strategy.averages_gradients:  # with a plain mean in each step it is DDP, which is another algorithm
            strategy = replace(strategy, steps_per_round=2)
    else:
        own = rng.random() < 0.5 and not step.is_plain
        phases = [_phase(rng, n) for _ in range(rng.randint(0, 2))]
        if own:
            phases = [st.Phase.from_groups(n, [group.members for group in phase]) for phase in phases]
            axes["payload"] = st.Payload(outer=replace(step, outer_params=st.OuterParams.PER_WORKER))
        phases = [phase if own or not _of_all(phase) else _settling(phase, step) for phase in phases]
        phases.insert(rng.randint(0, len(phases)), st.Phase.from_groups(n, [range(n)]))
        strategy = st.StaticGroups(phases=st.GroupPhases(tuple(phases)), prologue=rng.choice([0, 0, 1]), **axes)
        if own and (outer_radius(Kind(strategy, Cluster.regular(1, n)).schedule) or 0) > 0.999:
            strategy = replace(strategy, payload=st.Payload(outer=step))
    return _draw_checkpoint(rng, _draw_loop(rng, seed, n, strategy, rounds=rng.randint(1, 5)))


def _settling(phase, step):
    """Return a phase of all workers whose relaxation outer steps allow: 1 with momentum, else above 0 up to 1."""
    (group,) = phase
    kept = group.relaxation if 0 < group.relaxation <= 1 and not step.momentum else 1
    return st.Phase.from_groups(phase.num_workers, [replace(group, relaxation=Fraction(kept))])


def fragments(seed):
    """Draw 1 to 9 steps per round, 1 to 4 fragments, any delay and alpha; data may end inside a round."""
    rng = random.Random(f"fragments {seed}")
    n, steps = rng.randint(2, 4), rng.randint(1, 9)
    count = rng.randint(1, min(4, steps))
    late, alpha = rng.randrange(rng.choice([steps // count, steps])), rng.choice(["0", "0", "1/2", "3/4"])
    parts: int | tuple = count
    if count > 1 and rng.random() < 0.5:
        layers = rng.sample(LAYERS, len(LAYERS))
        parts = tuple(tuple(f"{layer}.*" for layer in layers[number::count]) for number in range(count))
    strategy = st.AllReduce(
        steps_per_round=steps,
        sync=st.DelayedMerge(steps=late, alpha=alpha) if late or alpha != "0" else st.Synchronous(),
        payload=st.Payload(outer=_outer(rng, [0, 0.5, 0.9]), fragments=parts),
    )
    if strategy.averages_gradients:
        strategy = replace(strategy, steps_per_round=2)
    case = _draw_loop(rng, seed, n, strategy, rounds=1)
    longest = rng.randint(1, 3 * steps)
    lengths = tuple(longest if rng.random() < 0.7 else rng.randint(0, longest) for _ in range(n))
    case = replace(case, batches=lengths if max(lengths) else (longest,) * n)
    return _draw_checkpoint(rng, case)


def fragments_of_groups(seed):
    """Draw fragments that take turns over each round's groups; a worker without a group averages no fragment."""
    rng, case = random.Random(f"fragments of groups {seed}"), fragments(seed)
    n, payload = case.workers, case.strategy.payload
    phases = []
    for _ in range(rng.randint(1, 3)):
        ranks, cut = rng.sample(range(n), n), rng.choice([0, 1, 2])
        phases.append(st.Phase.from_groups(n, [part for part in (ranks[:cut], ranks[cut:]) if len(part) > 1]))
    own = tuple(rng.randint(payload.num_fragments, 9) for _ in range(n))
    strategy = st.StaticGroups(
        phases=st.GroupPhases(tuple(phases)),
        steps_per_round=rng.choice([case.strategy.steps_per_round, own]),
        payload=payload if any(map(_of_all, phases)) else replace(payload, outer=st.OuterStep()),
    )
    case = _draw_loop(rng, seed, n, strategy, rounds=rng.randint(1, 3))
    return _draw_checkpoint(rng, case, inside=isinstance(strategy.steps_per_round, int))


SIXTEEN_BITS = (st.Codec.FLOAT16, st.Codec.BFLOAT16)
TRAVELS = [
    *[(st.Codec.NONE, False, 1)] * 3,
    *((st.Codec.NONE, layers, nodes) for layers, nodes in ((True, 1), (True, 2), (False, 2))),
    *((codec, False, 1) for codec in st.Codec if codec.rounds),
    *((codec, True, 1) for codec in SIXTEEN_BITS),
]
"""The drawn transports of gradients: codec, whether each layer is sent separately, and number of nodes."""


def pipelines(seed):
    """Draw pipelines of width 2 and 3 with warm-up, both drain policies and both reductions.

    Some biases have no gradient. Some pipelines send layers during the backward pass, some use a codec, some sum in
    stages; some cases are no pipelines.
    """
    rng = random.Random(f"pipelines {seed}")
    n, rounds = rng.randint(2, 4), rng.randint(2, 10)
    codec, layers, nodes = TRAVELS[seed % len(TRAVELS)]
    n = 4 if nodes > 1 else 2 if codec in SIXTEEN_BITS else n
    transport = st.Transport(
        codec=codec,
        error_feedback=codec.has_blocks and rng.random() < 0.5,
        gradient_buckets=st.GradientBuckets.PER_LAYER if layers else st.GradientBuckets.SINGLE,
        algorithm=st.AllReduceAlgorithm.HIERARCHICAL if nodes > 1 else st.AllReduceAlgorithm.RING,
    )
    sync = (
        st.Synchronous()
        if layers and rng.random() < 0.5
        else st.Pipeline(
            width=rng.choice([2, 2, 3]),
            warm_up=rng.choice([0, 0, 1, 2, 3]),
            drain=rng.choice(list(st.DrainPolicy)),
            total=rng.choice(list(st.GradientReduction)),
        )
    )
    clip, inner = rng.choice(["", "mean"] if layers else ["", "", "value", "mean"]), rng.choice(list(OPTIMIZERS))
    if codec is not st.Codec.NONE:  # Adam makes large steps of what rounding leaves of small gradients
        inner = rng.choice(["sgd", "momentum", "nesterov"])
    case = _draw_loop(rng, seed, n, st.AllReduce(sync=sync, transport=transport), rounds=rounds, clip=clip, inner=inner)
    case = replace(case, cluster=Cluster.regular(nodes, n // nodes))
    if clip == "mean":  # all workers clip, also those that skip or have no data left
        case = replace(case, skips=frozenset(), batches=(rounds,) * n)
    if case.is_uneven:
        case = replace(case, decay=1.0)  # a common step needs the same learning rate on all workers
    cells = [(rank, step) for rank in range(n) for step in range(0 if layers else case.batches[rank])]
    case = replace(case, absent=frozenset(cell for cell in cells if rng.random() < 0.4))
    return _draw_checkpoint(rng, case)


FAMILIES = {
    "groups": groups,
    "coded": coded_groups,
    "graphs": graphs,
    "outer": outer,
    "fragments": fragments,
    "fragments of groups": fragments_of_groups,
    "pipelines": pipelines,
}
