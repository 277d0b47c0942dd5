"""Drift correction: equals its NumPy reference, finds the optimum where plain means do not, refuses what diverges."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.random_schedules import Quadratic
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import HandshakeError, InputError
from partreduce.topo.figures.correction import MAX_NOISE, STRONGEST_LOCAL, best_alpha, correction_radius, noise_factor
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Late, Pairwise, RulePhases, Static


def node_then_all(k):
    """Figures on 4 nodes of 4: inside nodes k times, then everybody."""
    inside, everyone = (Block((0, 1, 2, 3)),), (Block((0, 1, 2, 3), (0,)),)
    return Schedule(f"node×{k}", Cluster.regular(4, 4), Static(phases=RulePhases((4,), (inside,) * k + (everyone,))))


@pytest.mark.parametrize("k", [1, 3, 7, 15])
def test_node_k_then_all_is_stable_exactly_below_2_over_k_plus_1(k):
    edge = 2 / (k + 1)
    assert correction_radius(node_then_all(k), 0.999 * edge) < 1
    assert correction_radius(node_then_all(k), 1.001 * edge) > 1
    alpha, radius = best_alpha(node_then_all(k))
    assert 0 < alpha < edge
    assert radius < 0.7


@pytest.mark.parametrize("every", [2, 4, 16])
def test_all_reduce_every_h_steps_has_radius_1_minus_alpha(every):
    plan = Schedule("every", Cluster.regular(1, 8), AllReduce(pace=every))
    for alpha in (0.1, 0.5, 1.0, 1.5):
        assert correction_radius(plan, alpha) == pytest.approx(abs(1 - alpha))
    alpha, radius = best_alpha(plan)
    assert (alpha, radius) == (pytest.approx(STRONGEST_LOCAL), pytest.approx(1 - STRONGEST_LOCAL))


@pytest.mark.parametrize("every", [2, 5])
def test_all_reduce_every_h_steps_has_noise_factor_2_over_2_minus_alpha(every):
    plan = Schedule("every", Cluster.regular(1, 8), AllReduce(pace=every))
    for alpha in (0.1, 0.5, 1.0, 1.5):
        assert noise_factor(plan, alpha) == pytest.approx(2 / (2 - alpha))


@pytest.mark.parametrize("k", [1, 3, 7])
def test_auto_is_stable_and_follows_little_noise(k):
    alpha, radius = best_alpha(node_then_all(k))
    assert radius < 1
    assert 1 < noise_factor(node_then_all(k), alpha) <= MAX_NOISE


def test_noise_factor_equals_a_simulation_of_the_joint_iteration():
    plan = node_then_all(1)
    numbers, spread = np.random.default_rng(0), {}
    for alpha in (0.0, 0.4):
        x, h, total = np.zeros((16, 500)), np.zeros((16, 500)), 0.0
        for step in range(300):
            x += h + numbers.normal(size=x.shape)
            total += ((x - x.mean(axis=0)) ** 2).sum() if step >= 100 else 0.0
            for group in plan.phase(step % 2):
                members = list(group.members)
                change = x[members].mean(axis=0) - x[members]
                h[members] += alpha * change
                x[members] += change
        spread[alpha] = total
    assert spread[0.4] / spread[0.0] == pytest.approx(noise_factor(plan, 0.4), rel=0.02)


def test_a_rule_with_a_radix_above_two_follows_the_noise_of_its_explicit_groups():
    """A class of characters counts as often as it occurs, or `auto` takes another strength for the same groups."""
    plan = node_then_all(3)
    explicit = Schedule("explicit", plan.cluster, Static(phases=GroupPhases(plan.steps())))
    assert noise_factor(plan, 0.2) == pytest.approx(noise_factor(explicit, 0.2))
    assert best_alpha(plan) == pytest.approx(best_alpha(explicit))


def test_classes_of_a_rule_have_the_radius_of_the_expanded_schedule():
    """Random rules with relax factors and skipping workers against the dense operator of all workers."""
    rng = random.Random(5)
    for _ in range(30):
        radices = rng.choice([(2,), (3,), (2, 2), (2, 3)])
        size = rng.randint(1, 3)
        phases = []
        for _ in range(rng.randint(1, 3)):
            local = rng.sample(range(size), size)
            blocks = []
            while local and rng.random() < 0.8:
                count = rng.randint(1, len(local))
                across = tuple(d for d in range(len(radices)) if rng.random() < 0.5)
                blocks.append(Block(tuple(sorted(local[:count])), across, Fraction(rng.choice([1, 1, 2]), 2)))
                local = local[count:]
            phases.append(tuple(blocks))
        cluster = Cluster.regular(int(np.prod(radices)), size)
        rule = Schedule("rule", cluster, Static(phases=RulePhases(radices, tuple(phases)), pace=rng.randint(1, 2)))
        dense = tuple(rule.phase(t) for t in range(rule.period))
        explicit = Schedule("explicit", cluster, Static(phases=GroupPhases(dense), pace=rule.strategy.pace))
        alpha = rng.uniform(0.05, 1)
        # Eigenvalues that sit in Jordan blocks are only as exact as the root of the machine's precision.
        assert correction_radius(rule, alpha) == pytest.approx(correction_radius(explicit, alpha), abs=2e-3)


def random_case(seed):
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    phases = []
    for _ in range(rng.randint(1, 3)):
        workers, groups = rng.sample(range(n), n), []
        while len(workers) >= 2 and rng.random() < 0.9:
            size = rng.randint(2, len(workers))
            groups.append(
                Group(tuple(sorted(workers[:size])), rng.choice([Fraction(1), Fraction(1, 2), Fraction(5, 4)]))
            )
            workers = workers[size:]
        phases.append(Phase.from_groups(n, groups))
    pace = rng.choice([1, 2, tuple(rng.randint(1, 3) for _ in range(n))])
    strategy = (
        Static(phases=GroupPhases(tuple(phases)), pace=pace)
        if rng.random() < 0.8
        else AllReduce(pace=rng.randint(2, 3))
    )
    return Schedule(f"random {seed}", Cluster.regular(1, n), strategy), rng.randint(2, 7), rng.uniform(0.02, 0.3)


def reference(plan, num_rounds, alpha, data, rates, *, guarded=True):
    start, decay, push = data
    n, paces, x, h = plan.num_workers, plan.paces(), start.copy(), np.zeros_like(start)
    done, since = np.zeros(n, dtype=int), np.zeros(n)
    agreement, size, trust = np.zeros(n), np.zeros(n), 1.0
    for k in range(num_rounds):
        for i in range(n):
            for _ in range(paces[i]):
                rate = rates[done[i] % len(rates)]
                gradient = decay[i] * x[i] - push[i]
                if since[i] == 0:
                    agreement[i] += gradient @ h[i]
                    size[i] += h[i] @ h[i]
                x[i] = x[i] - rate * (gradient - h[i])
                since[i] += rate
                done[i] += 1
        groups = [plan.group_of(i, k) for i in range(n)]
        for group in {g.members: g for g in groups if g is not None}.values():
            members = list(group.members)
            change = x[members].mean(axis=0) - x[members]
            if len(members) == n and guarded:
                kappa = min(max(agreement.sum() / size.sum(), 0), 1) if size.sum() > 0 else 1
                h *= kappa
                trust = max(trust / 2, 1 / 64) if kappa < 0.5 else min(trust * 1.2, 1)
                agreement[:], size[:] = 0, 0
            h[members] += alpha * trust * change / since[members].mean()
            x[members] += float(group.relax) * change
            since[members] = 0
    return x, h


@pytest.mark.parametrize("part", range(2))
def test_values_and_corrections_equal_the_numpy_reference(ranks, part):
    rates = [0.2, 0.1, 0.3]
    tested = 0
    for seed in range(part * 15, part * 15 + 15):
        plan, num_rounds, alpha = random_case(seed)
        try:
            stable = correction_radius(plan, alpha) < 1
        except InputError:
            stable = False
        if not stable:
            continue
        tested += 1
        numbers = np.random.default_rng(seed)
        n = plan.num_workers
        data = numbers.normal(size=(n, 3)), numbers.uniform(0, 1, n), numbers.normal(size=(n, 3))

        def work(world, plan=plan, num_rounds=num_rounds, alpha=alpha, data=data):
            rank = world.rank
            model = Quadratic(data[0][rank], torch.float64)
            inner = torch.optim.SGD([{"params": [model.first]}, {"params": [model.rest]}], lr=1.0)
            optimizer = DistributedOptimizer(
                inner,
                model,
                plan,
                timeout=60,
                initial="keep",
                drift_correction=alpha,
                world=world,
            )
            for step in range(num_rounds * plan.pace_of(rank)):
                for group in inner.param_groups:
                    group["lr"] = rates[step % len(rates)]
                model.set_gradient(float(data[1][rank]), data[2][rank])
                optimizer.step()
            h = torch.cat([place[2] for place in optimizer.runner._places.values()]).numpy().copy()
            optimizer.runner.close()
            return model.values().numpy().copy(), h

        got = ranks.run(n, work)
        wanted, corrections = reference(plan, num_rounds, alpha, data, rates)
        np.testing.assert_allclose(np.stack([x for x, _ in got]), wanted, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}")
        np.testing.assert_allclose(np.stack([h for _, h in got]), corrections, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(sum(h for _, h in got), 0, atol=1e-9)
    assert tested > 6


def steep(seed, workers=4):
    """Quadratics, each of which is steep in a direction of its own: rate · curvature is 2.05 there, 0.1 elsewhere."""
    curvature = np.full((workers, workers), 0.1)
    np.fill_diagonal(curvature, 2.05)
    push = np.random.default_rng(seed).normal(size=(workers, workers))
    return np.zeros((workers, workers)), curvature, push


@pytest.mark.parametrize("every", [2, 4])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_a_correction_that_learns_a_swing_is_held_near_training_without_it(every, alpha):
    plan = Schedule("every", Cluster.regular(1, 4), AllReduce(pace=every))
    for seed in range(5):
        data = steep(seed)
        best = data[2].sum(axis=0) / data[1].sum(axis=0)
        distances = [
            float(np.linalg.norm(reference(plan, 200, strength, data, [1.0], guarded=guarded)[0][0] - best))
            for strength, guarded in ((0.0, True), (alpha, False), (alpha, True))
        ]
        without, unguarded, held = distances
        assert unguarded > 100 * without
        assert held < 1.1 * without


def test_numbers_that_are_not_finite_end_a_correction_not_the_run(ranks):
    """One worker's correction overflows in a round that its gradients undo: everybody drops theirs and goes on."""
    plan = Schedule("every", Cluster.regular(1, 3), AllReduce(pace=2))

    def work(world):
        model = Quadratic(np.zeros(3), torch.float32)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, drift_correction=1.0, world=world)
        strategy = optimizer.runner
        for step in range(12):
            model.set_gradient(1.0, np.full(3, float(world.rank)))
            if step in (6, 7) and world.rank == 1:
                strategy.corrections[0].fill_(1e30)  # its square overflows
                model.set_gradient(0.0, np.zeros(3))
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.grad.copy_(torch.full_like(parameter, 1e30))
            optimizer.step()
        doubts = strategy.doubts[0].item()
        h = strategy.corrections[0][:3].numpy().copy()
        return h, model.values().numpy().copy(), doubts

    results = ranks.run(3, work)
    assert all(np.isfinite(h).all() and np.isfinite(x).all() for h, x, _ in results)
    counted = {doubts for *_, doubts in results}
    assert len(counted) == 1
    assert counted.pop() >= 1
    np.testing.assert_allclose(sum(h for h, *_ in results), 0, atol=1e-5)


@pytest.mark.parametrize("strategy", [AllReduce(pace=2), "pairs"])
def test_a_resumed_run_continues_bit_for_bit_with_its_corrections(ranks, tmp_path, strategy):
    """Saved where corrections were learned, evidence gathered and α halved."""
    if strategy == "pairs":
        phases = tuple(Phase.from_groups(3, groups) for groups in ([[0, 1]], [[1, 2]], [[0, 1, 2]]))
        strategy = Static(phases=GroupPhases(phases))
    plan = Schedule("resumed", Cluster.regular(1, 3), strategy)
    numbers = np.random.default_rng(3).normal(size=(40, 3, 3))

    def work(world, first=0, last=40, saved=None):
        model = Quadratic(np.zeros(3), torch.float32)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, drift_correction="auto", world=world)
        if first:
            load_checkpoint(optimizer, tmp_path)
        for step in range(first, last):
            model.set_gradient((0.1, 2.05, 0.4)[world.rank], numbers[step, world.rank])
            optimizer.step()
            if saved is not None and step + 1 == saved:
                save_checkpoint(optimizer, tmp_path)
        strategy = optimizer.runner
        return model.values().numpy().tobytes(), {k: v.numpy().tobytes() for k, v in strategy.state().items()}

    for saved in (20, 22):
        whole = ranks.run(3, lambda world, saved=saved: work(world, saved=saved))
        assert ranks.run(3, lambda world, saved=saved: work(world, first=saved)) == whole


def optimum(world, plan, correction, *, steps=400):
    """Distance to the joint optimum of quadratics that differ between workers in place and in curvature."""
    n = plan.num_workers
    curvature, place = np.linspace(0.5, 1.5, n), np.arange(n) - 1.0
    best = float((curvature * place).sum() / curvature.sum())
    model = Quadratic(np.zeros(3), torch.float64)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(inner, model, plan, timeout=60, drift_correction=correction, world=world)
    for _ in range(steps):
        model.set_gradient(float(curvature[world.rank]), np.full(3, curvature[world.rank] * place[world.rank]))
        optimizer.step()
    optimizer.finish()
    return abs(float(model.values()[0]) - best)


@pytest.mark.parametrize("strategy", [AllReduce(pace=4), "pairs"])
def test_corrected_workers_reach_the_optimum_that_plain_means_miss(ranks, strategy):
    if strategy == "pairs":
        phases = tuple(Phase.from_groups(4, groups) for groups in ([[0, 1], [2, 3]], [[1, 2]], [[0, 3]]))
        strategy = Static(phases=GroupPhases(phases))
    plan = Schedule("uneven", Cluster.regular(1, 4), strategy)
    without = ranks.run(4, lambda world: optimum(world, plan, None))
    corrected = ranks.run(4, lambda world: optimum(world, plan, "auto"))
    assert min(without) > 1e-3
    assert max(corrected) < 3e-5


def make(world, plan, correction, inner=None):
    model = torch.nn.Linear(2, 1)
    chosen = (inner or (lambda p: torch.optim.SGD(p, lr=0.1)))(model.parameters())
    return DistributedOptimizer(chosen, model, plan, timeout=5, drift_correction=correction, world=world)


@pytest.mark.parametrize(
    ("plan", "correction", "inner", "words"),
    [
        (Schedule("s", Cluster.regular(1, 2), AllReduce()), "auto", None, "does not average parameters in groups"),
        (Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2, when=Late())), "auto", None, "overlaps"),
        (Schedule("s", Cluster.regular(1, 2), Pairwise(active=(0,))), 0.3, None,
            "does not average parameters in groups"),
        (Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2)), "auto", torch.optim.Adam, "the optimizer is Adam"),
        (Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2)), "auto",
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "has momentum 0.9"),
        (Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2)), "strong", None, "neither 'auto' nor a strength"),
        (Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2)), 3, None, "is not a strength in (0, 2]"),
        (Schedule("s", Cluster.regular(1, 2), Static(phases=GroupPhases((Phase.from_groups(2, []),)))), "auto", None,
            "do not connect all workers"),
    ],
)  # fmt: skip
def test_what_is_not_shown_right_is_refused(ranks, plan, correction, inner, words):
    for error in ranks.run(2, lambda world: make(world, plan, correction, inner), catch=InputError):
        assert words in str(error)


def test_a_strength_that_diverges_is_refused_with_its_radius():
    plan = node_then_all(3)
    from partreduce.runtime.strategies.drift_correction import chosen_alpha

    sgd = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"1 diverges .* radius of a period is 3, .*'auto' takes 0\.192 "):
        chosen_alpha(1.0, plan, sgd)


def test_workers_with_different_strengths_are_named(ranks):
    ranks.fresh()
    plan = Schedule("s", Cluster.regular(1, 3), AllReduce(pace=2))
    errors = ranks.run(3, lambda world: make(world, plan, 0.5 if world.rank == 1 else 0.25), catch=HandshakeError)
    assert all("drift correction differs: rank 1 has 0.5" in str(error) for error in errors)
    ranks.fresh()


def test_a_skipped_step_counts_no_rate_and_a_closure_is_corrected(ranks):
    plan = Schedule("s", Cluster.regular(1, 2), AllReduce(pace=2))

    def work(world):
        model = Quadratic(np.zeros(3), torch.float64)
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = DistributedOptimizer(inner, model, plan, timeout=60, drift_correction=1.0, world=world)

        def closure():
            model.set_gradient(0.0, np.full(3, 1.0 + world.rank))
            return torch.tensor(0.0)

        optimizer.step(closure)
        optimizer.skip()
        # one step of 0.5 each: means (0.5 + 1.0) / 2, corrections (mean − x) / 0.5
        h = optimizer.runner.corrections[0][0].item()
        optimizer.step(closure)
        return h, float(model.values()[0])

    (h0, x0), (h1, x1) = ranks.run(2, work)
    assert (h0, h1) == (0.5, -0.5)
    assert x0 == x1 == 0.75 + 0.5 * 1.5
