"""Buffer rules: how each kind of buffer is averaged by every strategy, in every call that averages."""

import re
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm

from helpers.thread_ranks import on_ranks
from helpers.training import group_phases, wrap
from helpers.warm import WARM
from partreduce import load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import HandshakeError, InputError
from partreduce.runtime.averaging.buffer_rules import (
    KINDS,
    BufferRule,
    BufferSpec,
    Values,
    buffer_kind,
    check_spec,
    values_of,
)

N = 3
RING = (st.Round.from_edges(N, [(i, (i + d) % N, Fraction(1, 3)) for i in range(N) for d in (1, 2)]),)
EVERYONE = group_phases(N, [range(N)])
STRATEGIES = {
    "gradients": st.AllReduce(),
    "pipeline": st.AllReduce(sync=st.Pipeline(width=2)),
    "parameters": st.AllReduce(steps_per_round=2),
    "groups": st.StaticGroups(phases=EVERYONE, steps_per_round=2),
    "late": st.StaticGroups(phases=EVERYONE, steps_per_round=2, sync=st.DelayedAveraging()),
    "neighbors": st.NeighborAveraging(rounds=RING, steps_per_round=2),
    "neighbors, late": st.NeighborAveraging(rounds=RING, steps_per_round=2, sync=st.DelayedAveraging()),
    "server": st.Server(hosts=(1,)),
    "pairs": st.Pairwise(active=(1,)),
}
COPIES_IN_STEPS = [name for name in STRATEGIES if name not in ("server", "pairs")]
"""Strategies that average models or gradients of groups, and buffers with them."""


def train(model, optimizer, steps, *, at=lambda step: None, width=4):
    generator = torch.Generator().manual_seed(1 + optimizer.rank)
    for step in range(steps):
        at(step)
        optimizer.zero_grad()
        model(torch.randn(8, width, generator=generator)).square().mean().backward()
        optimizer.step()


def linear():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


class Holder(torch.nn.Module):
    """A module with one weight and the given buffers."""

    def __init__(self, **buffers):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 4))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, inputs):
        return inputs @ self.weight.t()


# The table.

OLD_NORM = old_spectral_norm(torch.nn.Linear(3, 2))
NORM = parametrizations.spectral_norm(torch.nn.Linear(3, 2)).parametrizations["weight"][0]
FLOATS = torch.ones(3)
CASES = [
    ("graph", torch.eye(2).to_sparse(), torch.nn.Module(), "sparse", BufferRule.CONSTANT),
    ("num_batches_tracked", torch.tensor(3), torch.nn.BatchNorm1d(2), "integer, bool, complex, float8", BufferRule.OWN),
    ("mask", torch.ones(3, dtype=torch.bool), torch.nn.Module(), "integer, bool, complex, float8", BufferRule.OWN),
    ("phase", FLOATS.cfloat(), torch.nn.Module(), "integer, bool, complex, float8", BufferRule.OWN),
    ("scale", FLOATS.to(torch.float8_e4m3fn), torch.nn.Module(), "integer, bool, complex, float8", BufferRule.OWN),
    ("min_val", FLOATS, torch.ao.quantization.MinMaxObserver(), "of an observer or fake quantizer", BufferRule.OWN),
    ("scale", FLOATS, torch.ao.quantization.FakeQuantize(), "of an observer or fake quantizer", BufferRule.OWN),
    ("weight_u", OLD_NORM.weight_u, OLD_NORM, "vectors of `spectral_norm`", BufferRule.FIRST),
    ("weight_v", OLD_NORM.weight_v, OLD_NORM, "vectors of `spectral_norm`", BufferRule.FIRST),
    ("_u", NORM._u, NORM, "vectors of `spectral_norm`", BufferRule.FIRST),
    ("_u", FLOATS, torch.nn.Module(), "other real numbers", BufferRule.MEAN),
    ("running_mean", FLOATS, torch.nn.BatchNorm1d(3), "running statistics", BufferRule.MEAN),
    ("running_mask", FLOATS, torch.nn.Module(), "running statistics", BufferRule.MEAN),
    ("weight_mask", FLOATS, torch.nn.Linear(3, 3), "masks, by name", BufferRule.FIRST),
    ("mask", FLOATS, torch.nn.Module(), "masks, by name", BufferRule.FIRST),
    ("anything", FLOATS.half(), torch.nn.Module(), "other real numbers", BufferRule.MEAN),
]


@pytest.mark.parametrize(("name", "buffer", "module", "kind", "rule"), CASES)
def test_first_matching_buffer_kind_gives_the_rule(name, buffer, module, kind, rule):
    found = buffer_kind(name, buffer, module)
    assert (found.name, found.rule) == (kind, rule)


def test_every_buffer_kind_has_a_case_and_a_row_in_the_docs():
    text = (Path(__file__).parents[3] / "docs" / "runtime.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \|", text.partition("## Buffers")[2].partition("\n## ")[0], re.MULTILINE)
    assert rows == [(kind.name, kind.rule.value) for kind in KINDS]
    assert {kind for _, _, _, kind, _ in CASES} == {kind.name for kind in KINDS}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 1, 1], "mask"),
        ([0, 0], "uniform"),
        ([1], "uniform"),
        ([0, 0.5, 1], "other"),
        ([], "other"),
        ([2, 2], "other"),
    ],
)
def test_zeros_and_ones_are_classified_as_a_mask(values, kind):
    assert values_of(torch.tensor(values, dtype=torch.float32)) == Values(kind)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (None, "was removed on worker 2, and was there on all workers when DistributedOptimizer was made; keep it"),
        (torch.zeros(4), r"has the shape \[4\] on worker 2 now, and had \[3\] on all .* give it the new one on every"),
        (torch.zeros(3).to_sparse(), "is sparse on worker 2 now, and was dense .* or make it sparse on every worker"),
        (torch.zeros(3).cfloat(), "is torch.complex64 on worker 2 now, and was torch.float32 .* keep its dtype"),
        (torch.zeros(3, dtype=torch.int64), "is torch.int64 on worker 2 now"),
    ],
)
def test_changed_buffer_spec_raises_with_its_name(now, message):
    with pytest.raises(InputError, match=f"buffer 'net.seen': {message}"):
        check_spec("net.seen", now, BufferSpec.of(torch.zeros(3)), 2)


def test_float_buffer_may_change_its_width():
    check_spec("seen", torch.zeros(3).double(), BufferSpec.of(torch.zeros(3)), 0)


# Masks.


def masked_by_hand(rank):
    """A linear layer whose mask differs between workers before it is wrapped."""
    model = linear()
    mask = torch.ones(4, 4)
    mask[rank] = 0
    prune.custom_from_mask(model[0], "weight", mask)
    return model


@pytest.mark.parametrize("kind", COPIES_IN_STEPS)
def test_pruning_masks_are_replaced_by_those_of_worker_0(ranks, kind):
    def work(world):
        model = linear()
        prune.identity(model[0], "weight")
        optimizer = wrap(world, model, STRATEGIES[kind])
        own = []

        def at(step):
            if step == 6:
                scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(world.rank))
                prune.l1_unstructured(model[0], "weight", amount=0.5, importance_scores=scores)
                own.append(model[0].weight_mask.clone())

        with warnings.catch_warnings(action="ignore"):
            train(model, optimizer, 12, at=at)
            live = model[0].weight_mask.clone()
            with optimizer.mean_model():
                mean = model[0].weight_mask.clone()
            optimizer.finish()
        return own[0], live, mean, model[0].weight_mask.clone()

    results = ranks.run(N, work)
    first = results[0][0]
    assert any(not torch.equal(own, first) for own, *_ in results), "the masks differed"
    for _, *later in results:
        assert all(torch.equal(mask, first) for mask in later)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_mean_model_has_worker_0s_mask_if_initial_masks_differ(ranks, kind):
    def work(world):
        model = masked_by_hand(world.rank)
        initial = "broadcast" if kind in ("gradients", "pipeline", "server") else "keep"
        optimizer = wrap(world, model, STRATEGIES[kind], initial=initial)
        train(model, optimizer, 2)
        with optimizer.mean_model():
            mean = model[0].weight_mask.clone()
        optimizer.finish()
        return mean, model[0].weight_mask.clone()

    expected = masked_by_hand(0)[0].weight_mask
    for masks in ranks.run(N, work):
        assert all(torch.equal(mask, expected) for mask in masks)


@pytest.mark.parametrize("initial", ["broadcast", "keep"])
def test_mask_values_on_all_workers_select_the_mask_rule(ranks, initial):
    """With `keep` only worker 0's `trend` has mask values, so all use MEAN; `broadcast` gives all worker 0's values."""

    def work(world):
        keep = torch.tensor([1.0, 1.0, 0.0]).roll(world.rank) if world.rank else torch.ones(3)
        trend = torch.tensor([0.0, 1.0]) + world.rank / 2
        model = Holder(keep=keep, level=torch.zeros(2), trend=trend)
        optimizer = wrap(world, model, st.AllReduce(steps_per_round=2), initial=initial)
        rules = dict(optimizer.run.flat.rules)
        if world.rank == 1:
            with torch.no_grad():
                model.keep.copy_(torch.tensor([0.0, 0.0, 1.0]))
        train(model, optimizer, 2)
        optimizer.finish()
        return rules, model.keep.tolist(), model.trend.tolist()

    rules, keep, trend = zip(*ranks.run(N, work), strict=True)
    assert rules[0] == rules[1] == rules[2]
    assert rules[0]["level"] is BufferRule.MEAN
    if initial == "keep":
        assert (rules[0]["keep"], rules[0]["trend"]) == (BufferRule.FIRST, BufferRule.MEAN)
        assert keep == ([1.0, 1.0, 1.0],) * 3
        assert trend == ([0.5, 1.5],) * 3
    else:  # all have worker 0's values: a uniform `keep`, and a `trend` of zeros and ones
        assert (rules[0]["keep"], rules[0]["trend"]) == (BufferRule.MEAN, BufferRule.FIRST)


def test_mask_changed_during_a_late_average_is_kept_by_worker_0(ranks):
    """The lowest rank keeps its current mask, and the others receive it one round later."""

    def work(world):
        model = Holder(mask=torch.tensor([1.0, 0.0]))
        optimizer = wrap(world, model, STRATEGIES["late"])
        seen = []

        def at(step):
            if step == 1:  # inside a round, while its average is in flight
                with torch.no_grad():
                    model.mask.copy_(torch.tensor([0.0, 1.0]) if world.rank == 0 else torch.tensor([1.0, 1.0]))
            seen.append(model.mask.tolist())

        train(model, optimizer, 5, at=at)
        optimizer.finish()
        return seen[2], seen[4], model.mask.tolist()

    after_one, after_two, end = zip(*ranks.run(N, work), strict=True)
    assert after_one[0] == [0.0, 1.0]
    assert after_two == ([0.0, 1.0],) * 3
    assert end == ([0.0, 1.0],) * 3


# Shapes.


class Growing(torch.nn.Module):
    """Position ids that a forward pass extends on demand, as in several models."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 4))
        self.register_buffer("positions", torch.arange(6))

    def grow(self, length):
        self.positions = torch.arange(length)

    def forward(self, inputs):
        return inputs @ self.weight.t()


def evaluate(optimizer, action=lambda: None):
    with optimizer.mean_model():
        action()


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("place", ["step", "mean_model", "finish", "save_checkpoint"])
def test_grown_buffer_raises_with_its_name_in_every_call(ranks, kind, place, tmp_path):
    """The buffer grows on all workers; `test_numerical_regressions` tests growth on one worker."""

    def work(world):
        model = Growing()
        optimizer = wrap(world, model, STRATEGIES[kind])
        train(model, optimizer, 2)
        model.grow(11)
        places = {
            "step": lambda: train(model, optimizer, 1),
            "mean_model": lambda: evaluate(optimizer),
            "finish": optimizer.finish,
            "save_checkpoint": lambda: save_checkpoint(optimizer, tmp_path),
        }
        with pytest.raises(InputError) as refused:
            places[place]()
        model.grow(6)  # its original size, with which the run continues
        train(model, optimizer, 2)
        optimizer.finish()
        return str(refused.value)

    for rank, text in enumerate(ranks.run(N, work)):
        assert text == (
            f"buffer 'positions': has the shape [11] on worker {rank} now, and had [6] on all workers when "
            "DistributedOptimizer was made; keep its size, or give it the new one on every worker before "
            "DistributedOptimizer is made"
        )


def test_buffer_grown_in_mean_model_raises_and_parameters_are_restored(ranks):
    def work(world):
        model = Growing()
        optimizer = wrap(world, model, st.AllReduce(steps_per_round=4))
        train(model, optimizer, 2)
        before = model.weight.detach().clone()
        seen = []

        def look():
            seen.append(model.weight.detach().clone())
            model.grow(11)

        message = rf"has the shape \[11\] on worker {world.rank} now, and had \[6\] when mean_model\(\) began"
        with pytest.raises(InputError, match=f"buffer 'positions': {message}"):
            evaluate(optimizer, look)
        kept = torch.equal(model.weight, before)
        model.grow(6)
        optimizer.finish()
        return kept, seen[0].tolist(), before.tolist()

    results = ranks.run(N, work)
    assert all(kept for kept, _, _ in results)
    assert all(mean != before for _, mean, before in results), "the mean differs from the parameters"


@on_ranks(N)
def test_shape_check_does_not_hide_an_error_inside_mean_model(world):
    model = Growing()
    optimizer = wrap(world, model, st.AllReduce(steps_per_round=4))

    def fail():
        model.grow(11)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate(optimizer, fail)
    model.grow(6)
    optimizer.finish()


# Counters, indices and other types.


@pytest.mark.parametrize("kind", STRATEGIES)
def test_buffers_without_a_mean_are_worker_0s_in_mean_model_and_after_finish(ranks, kind):
    def work(world):
        rank = world.rank
        model = Holder(
            count=torch.tensor(0),
            picked=torch.tensor([False, False]),
            small=torch.zeros(3, dtype=torch.uint8),
            tiny=torch.zeros(3).to(torch.float8_e4m3fn),
            phase=torch.zeros(2, dtype=torch.complex64),
            running=torch.zeros(2),
        )
        optimizer = wrap(world, model, STRATEGIES[kind])
        values = {
            "count": torch.tensor(7 + rank),
            "picked": torch.tensor([rank == 0, rank != 0]),
            "small": torch.tensor([rank, 1, 255], dtype=torch.uint8),
            "tiny": torch.tensor([1.5, -2.0, float(rank)]).to(torch.float8_e4m3fn),
            "phase": torch.tensor([1 + 2j, rank * 1j], dtype=torch.complex64),
        }
        for name, value in values.items():
            getattr(model, name).copy_(value)
        train(model, optimizer, 2)

        def are(others):
            return all(
                torch.equal(getattr(model, name).to(torch.complex64), v.to(torch.complex64)) for name, v in others
            )

        with optimizer.mean_model():
            inside = {name: getattr(model, name).clone() for name in values}
        own = are(values.items())
        optimizer.finish()
        end = {name: getattr(model, name).clone() for name in values}
        return own, inside, end, values

    results = ranks.run(N, work)
    expected = results[0][3]
    for own, inside, end, _ in results:
        assert own
        for found in (inside, end):
            for name, value in expected.items():
                assert torch.equal(found[name].to(torch.complex64), value.to(torch.complex64)), name


# Buffers that are consistent only together.


def spectral(kind):
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    made = old_spectral_norm(layer) if kind == "hook" else parametrizations.spectral_norm(layer)
    return torch.nn.Sequential(made, torch.nn.Linear(4, 2))


def vectors_of(model):
    return [buffer for name, buffer in model.named_buffers() if name.endswith(("_u", "_v"))]


@pytest.mark.parametrize("way", ["hook", "parametrization"])
@pytest.mark.parametrize("strategy", ["parameters", "late", "neighbors, late", "pairs"])
@on_ranks(N)
def test_spectral_norm_vectors_keep_unit_length(world, way, strategy):
    model = spectral(way)
    optimizer = wrap(world, model, STRATEGIES[strategy])
    with torch.no_grad():  # far apart, so that a mean of unit vectors is much shorter
        for vector in vectors_of(model):
            random = torch.randn(vector.shape, generator=torch.Generator().manual_seed(world.rank))
            vector.copy_(torch.nn.functional.normalize(random, dim=0))
    train(model, optimizer, 2)
    lengths = [float(vector.norm()) for vector in vectors_of(model)]
    with optimizer.mean_model():
        lengths += [float(vector.norm()) for vector in vectors_of(model)]
    optimizer.finish()
    lengths = lengths + [float(vector.norm()) for vector in vectors_of(model)]
    assert len(lengths) == 6
    assert lengths == pytest.approx([1.0] * 6, abs=1e-5)


class QuantizedModel(torch.nn.Module):
    """A layer behind a fake quantizer of its inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.quantizer = torch.ao.quantization.FakeQuantize(torch.ao.quantization.MovingAverageMinMaxObserver)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(self.quantizer(inputs))

    def state(self):
        observer = self.quantizer.activation_post_process
        found = [self.quantizer.scale, self.quantizer.zero_point, observer.min_val, observer.max_val]
        return [one.item() for one in found]

    def is_consistent(self):
        scale, zero_point = self.quantizer.activation_post_process.calculate_qparams()
        return self.state()[:2] == [scale.item(), zero_point.item()]


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [(kind, "average") for kind in ("gradients", "parameters", "late", "neighbors", "pairs")]
    + [("gradients", "broadcast"), ("late", "broadcast"), ("parameters", "local"), ("neighbors", "local")],
)
def test_observer_scale_and_zero_point_stay_consistent(ranks, kind, buffers):
    def work(world):
        model = QuantizedModel()
        optimizer = wrap(world, model, STRATEGIES[kind], buffers=buffers)
        generator = torch.Generator().manual_seed(world.rank)
        consistent = []
        for _ in range(4):
            optimizer.zero_grad()
            inputs = torch.randn(8, 4, generator=generator) * (1 + world.rank) + world.rank
            model(inputs).square().mean().backward()
            optimizer.step()
            consistent.append(model.is_consistent())
        own = model.state()
        with optimizer.mean_model():
            inside = model.state()
            consistent.append(model.is_consistent())
        assert model.state() == own
        optimizer.finish()
        return own, inside, model.state(), [*consistent, model.is_consistent()]

    with warnings.catch_warnings(action="ignore"):  # torch's deprecation of its quantization module
        results = ranks.run(N, work)
    assert len({tuple(own) for own, *_ in results}) == N, "the observers saw different data"
    for _, inside, end, consistent in results:
        assert inside == end == results[0][0]
        assert all(consistent)


# Options, checkpoints, agreement.


@pytest.mark.parametrize("buffers", ["average", "local", "broadcast"])
def test_running_statistics_follow_the_buffers_option(ranks, buffers):
    def work(world):
        model = Holder(running_level=torch.zeros(2), mask=torch.ones(2))
        optimizer = wrap(world, model, st.AllReduce(steps_per_round=2), buffers=buffers)
        model.running_level.fill_(world.rank)
        model.mask.fill_(world.rank)
        train(model, optimizer, 2)
        seen = [model.running_level.tolist(), model.mask.tolist()]
        with optimizer.mean_model():
            seen += [model.running_level.tolist(), model.mask.tolist()]
        optimizer.finish()
        return [values[0] for values in seen]

    live = {"average": (1, 0), "broadcast": (0, 0)}
    for rank, seen in enumerate(ranks.run(N, work)):
        running, mask = live.get(buffers, (rank, rank))
        mean = 0 if buffers == "broadcast" else 1
        assert seen == pytest.approx([running, mask, mean, 0])


@pytest.mark.parametrize("kept", ["average", "local"])
def test_momentum_follows_the_optimizer_state_option(ranks, kept):
    def work(world):
        model = torch.nn.Linear(2, 1, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = wrap(world, model, st.AllReduce(steps_per_round=2), inner, optimizer_state=kept)
        for _ in range(2):
            model.weight.grad = torch.full((1, 2), float(world.rank))
            optimizer.step()
        momentum = optimizer.state[model.weight]["momentum_buffer"].flatten().tolist()
        optimizer.finish()
        return momentum

    for rank, momentum in enumerate(ranks.run(N, work)):
        assert momentum == pytest.approx([1.9 * (1 if kept == "average" else rank)] * 2)


def test_different_run_loads_mean_statistics_and_worker_0s_masks(ranks, tmp_path):
    def make(world):
        model = Holder(running_level=torch.zeros(2), mask=torch.ones(2), count=torch.tensor(0))
        return model, wrap(world, model, st.AllReduce(steps_per_round=2))

    def save(world):
        model, optimizer = make(world)
        model.running_level.fill_(world.rank)
        model.mask.fill_(float(world.rank != 0))
        model.count.fill_(5 + world.rank)
        save_checkpoint(optimizer, tmp_path)
        optimizer.finish()

    def load(world):
        model, optimizer = make(world)
        load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        seen = [*model.running_level.tolist(), *model.mask.tolist(), model.count.item()]
        optimizer.finish()
        return seen

    ranks.run(N, save)
    assert ranks.run(2, load) == [[1, 1, 0, 0, 5]] * 2


def test_differing_buffer_rules_fail_the_handshake(ranks):
    """One worker has a module of another class, with buffers of the same names and shapes."""

    def work(world):
        model = Holder(_u=torch.ones(2))
        if world.rank == 2:
            model.__class__ = type("_SpectralNorm", (Holder,), {})
        wrap(world, model, st.AllReduce(steps_per_round=2))

    errors = ranks.run(N, work, catch=HandshakeError)
    assert all("buffer rules" in str(error) and "rank 2 has buffer _u first" in str(error) for error in errors), errors


JOINING = """
import os, sys, time
import torch, partreduce
rank, lost = int(os.environ["RANK"]), os.path.exists("lost")
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
model.register_buffer("keep", torch.ones(3) if lost else torch.tensor([1.0, 0.0, 1.0]))
every = partreduce.strategies.AllReduce(steps_per_round=2)
schedule = partreduce.Schedule("every", partreduce.Cluster.regular(1, 3), every)
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model, schedule, timeout=60)
while optimizer.steps < 400:
    if rank == 2 and lost:
        open("again", "w").close()
    if rank == 2 and optimizer.steps == 6 and not lost:
        open("lost", "w").close()
        os.kill(os.getpid(), 9)
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    if optimizer.steps > 8 and not os.path.exists("again"):
        time.sleep(0.05)
optimizer.finish()
print("end", rank, lost, optimizer.run.flat.rules["keep"].value, model.keep.tolist(), flush=True)
"""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_rejoining_worker_takes_the_buffer_rules_of_the_run(tmp_path):
    """The initial values of the rejoining worker alone would select MEAN, and its share would be added to the mask."""
    (tmp_path / "train.py").write_text(JOINING)
    words = ["run", "-n", "3", "--tolerate-failures", "1", "--max-restarts", "1", "train.py"]
    ran = WARM.run("partreduce", *words, cwd=tmp_path, check=False)
    lines = sorted(re.findall(r"end (\d) (\w+) (\w+) (\[.*\])", ran.stdout))
    joined = ("2", "True", "first", "[1.0, 0.0, 1.0]")
    assert lines == [("0", "False", *joined[2:]), ("1", "False", *joined[2:]), joined], ran.stdout + ran.stderr
