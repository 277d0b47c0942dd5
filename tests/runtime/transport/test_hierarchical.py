"""The algorithm `hierarchical`: sums in three stages equal the ring's on all members and end when a member leaves."""

import threading

import pytest
import torch

from helpers.generator_rig import serving
from helpers.thread_ranks import on_ranks
from helpers.training import build_seeded, static_groups, wrap
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.errors import HandshakeError, InputError, MissingDependencyError, PeerFailedError, UnavailableError
from partreduce.runtime.environment import OVER_GLOO
from partreduce.runtime.transport import multistage_allreduce
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.multistage_allreduce import HierarchicalCommunicator, levels_of
from partreduce.runtime.transport.worlds import chosen_algorithm, world_for_algorithm
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting


@pytest.fixture
def small_parts(monkeypatch):
    """Send tensors of a few KiB in several parts, as tensors of many MiB are."""
    monkeypatch.setattr(multistage_allreduce, "PART_BYTES", 2048)


def all_of(world, cluster):
    """The hierarchical group of all workers, created on first use."""
    ours = world_for_algorithm(world, st.AllReduceAlgorithm.HIERARCHICAL, cluster)
    everyone = tuple(range(world.size))
    return ours.communicator(everyone) if ours.has(everyone) else ours.create(everyone)


def numbers(rank, length, dtype):
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize(("num_nodes", "on_each"), [(2, 2), (2, 4), (3, 2)])
def test_sums_equal_the_rings_and_are_the_same_bits_on_all_members(ranks, small_parts, num_nodes, on_each):
    cluster, n = Cluster.regular(num_nodes, on_each), num_nodes * on_each
    cases = [(length, dtype) for dtype in (torch.float32, torch.float64) for length in (1, 4, 127, 256, 1001, 5003)]
    cases += [(1027, torch.float16), (1027, torch.bfloat16)]

    def work(world):
        group = all_of(world, cluster)
        assert isinstance(group, HierarchicalCommunicator)
        results = []
        for _ in range(2):
            tensors = [numbers(world.rank, length, dtype) for length, dtype in cases]
            works = [group.all_reduce(tensor) for tensor in tensors]  # all in flight together, in one order
            for one in works:
                one.wait()
            assert all(one.is_completed() for one in works)
            results.append(tensors)
        return results

    answers = ranks.run(n, work)
    for index, (length, dtype) in enumerate(cases):
        first = answers[0][0][index]
        exact = sum(numbers(rank, length, dtype).double() for rank in range(n))
        tolerance = 1e-12 if dtype is torch.float64 else 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(first.double(), exact, rtol=tolerance, atol=tolerance)
        assert all(torch.equal(first, run[index]) for runs in answers for run in runs)


def test_hierarchy_levels_follow_the_cost_model():
    regular, odd = (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1)
    assert levels_of((0, 1, 2, 3), regular, 3) == ((2, 3), (1, 3))
    assert levels_of((0, 1, 4, 5), regular, 0) == ((0, 1), (0, 4))
    assert levels_of((0, 2, 3, 5), odd, 5) == ((3, 5), (2, 5))
    assert levels_of((0, 1), regular, 0) is None, "one node"
    assert levels_of((0, 2, 4), regular, 0) is None, "one worker on each node"
    assert levels_of((0, 1, 2), regular, 0) is None, "uneven"
    assert levels_of((0, 1, 3), odd, 3) is None, "uneven, and one on the own node"
    assert levels_of((0, 2, 1, 3), (0, 1, 0, 1), 3) == ((1, 3), (2, 3)), "nodes need not be intervals"


def test_uneven_groups_keep_the_ring_and_inner_groups_count_in_the_budget(ranks):
    cluster = Cluster.irregular([[0, 1], [2, 3], [4]])
    schedule = Schedule("uneven", cluster, static_groups(5, [[0, 1, 2, 3]], [[0, 1, 2]], [range(5)]))

    def work(world):
        ours = world_for_algorithm(world, st.AllReduceAlgorithm.HIERARCHICAL, cluster)
        ours.max_groups = 4
        try:
            ours.prepare(schedule)
        except InputError as error:
            refused = str(error)
        else:
            refused = None
        ours.max_groups = 5
        ours.prepare(schedule)
        assert (
            world_for_algorithm(world, st.AllReduceAlgorithm.HIERARCHICAL, Cluster.irregular([[0, 1], [2, 3], [4]]))
            is ours
        )
        assert world_for_algorithm(world, st.AllReduceAlgorithm.RING, cluster) is world
        kinds = {members: type(ours.communicator(members)) for members, _ in ours._groups}
        sums = []
        for members in sorted(kinds):
            tensor = torch.full((1000,), 2.0**world.rank)
            ours.communicator(members).all_reduce(tensor).wait()
            sums.append((sum(2.0**m for m in members), set(tensor.tolist())))
        return refused, kinds, sums

    answers = ranks.run(5, work)
    for rank, (refused, kinds, sums) in enumerate(answers):
        assert kinds[tuple(range(5))] is Communicator
        assert all(total == {wanted} for wanted, total in sums)
        if rank < 4:
            assert kinds[0, 1, 2, 3] is HierarchicalCommunicator
        if rank < 3:
            assert kinds[0, 1, 2] is Communicator
            assert "puts this worker into 5 distinct groups" in refused


def test_a_destroyed_group_ends_its_sums_and_those_of_its_peers(ranks):
    """Worker 3 destroys the group instead of calling; the others' sums end at once, though the limit is 60 s."""
    cluster = Cluster.regular(2, 2)
    barrier = threading.Barrier(4)

    def work(world):
        group, everyone = all_of(world, cluster), tuple(range(4))
        tensor = torch.ones(100_000)
        group.all_reduce(tensor).wait()
        ours = world_for_algorithm(world, st.AllReduceAlgorithm.HIERARCHICAL, cluster)
        if world.rank == 3:
            barrier.wait()
            ours.destroy([everyone])
            with pytest.raises(UnavailableError, match="destroyed"):
                group.all_reduce(tensor)
        else:
            running = [group.all_reduce(tensor) for _ in range(3)]
            barrier.wait()
            for one in running[: 1 + world.rank]:
                with pytest.raises(RuntimeError):
                    one.wait()
            ours.destroy([everyone])  # as workers do that see a failure
            for one in running:
                with pytest.raises(RuntimeError):
                    one.wait()
        group.sums.thread.join(60)
        assert not group.sums.thread.is_alive()
        assert not ours.has(everyone)

    ranks.run(4, work)
    ranks.fresh()


def network():
    return build_seeded(
        lambda: torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 1))
    )


def train(world, schedule, algorithm, steps=7):
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = wrap(world, model, schedule, inner, algorithm=algorithm)
    generator = torch.Generator().manual_seed(world.rank)
    for step in range(steps):
        x = torch.randn(8, 24, generator=generator)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        if step == 3:
            with optimizer.mean_model():
                pass
    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    optimizer.finish()
    return own, torch.cat([p.detach().reshape(-1) for p in model.parameters()]), optimizer


def node_then_all(**options):
    strategy = static_groups(4, [[0, 1], [2, 3]], [range(4)], **options)
    return Schedule("node, then all", Cluster.regular(2, 2), strategy)


SCHEDULES = {
    "node, then all": node_then_all(),
    "delayed": node_then_all(sync=st.DelayedAveraging()),
    "gradients": Schedule("gradients", Cluster.regular(2, 2), st.AllReduce()),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_hierarchical_training_equals_ring_training(ranks, small_parts, name):
    def work(world):
        ring = train(world, SCHEDULES[name], "ring")
        ours = train(world, SCHEDULES[name], "hierarchical")
        assert ring[2].run.reducer.world is world
        assert ours[2].run.reducer.world in world.relatives
        assert isinstance(ours[2].run.reducer.world.everyone(), HierarchicalCommunicator)
        return ring[:2], ours[:2]

    answers = ranks.run(4, work)
    for ring, ours in answers:
        torch.testing.assert_close(ours[0], ring[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours[1], ring[1], rtol=1e-4, atol=1e-5)
        assert torch.equal(ours[1], answers[0][1][1]), "all workers end with the same bits"


@on_ranks(4, [(True, True)] * 4)
def test_algorithm_option_overrides_the_schedule(world):
    plan = Schedule(
        "all",
        Cluster.regular(2, 2),
        st.AllReduce(steps_per_round=2, transport=st.Transport(algorithm=st.AllReduceAlgorithm.HIERARCHICAL)),
    )
    worlds = [train(world, plan, algorithm, steps=2)[2].run.reducer.world for algorithm in (None, "ring")]
    return worlds[0] in world.relatives, worlds[1] is world


def test_members_name_a_member_that_left(ranks):
    def work(world):
        model = network()
        schedule = Schedule("all", Cluster.regular(2, 2), st.AllReduce(steps_per_round=2))
        optimizer = wrap(world, model, schedule, lr=0.05, algorithm="hierarchical")
        for step in range(20):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            if world.rank == 2 and step == 9:
                optimizer.run.reducer.heartbeat.note("left", "stopped in round 4")
                optimizer.run.reducer.world.abandon()
                return None
            try:
                optimizer.step()
            except PeerFailedError as error:
                return str(error)
        return "not noticed"

    answers = ranks.run(4, work)
    ranks.fresh()
    for rank in (0, 1, 3):
        assert answers[rank].startswith("step 9, round 4: group {0,1,2,3}: worker 2 stopped in round 4")


def test_dynamic_groups_are_hierarchical_where_possible(ranks, monkeypatch):
    pytest.importorskip("zmq")
    schedule = Schedule("g", Cluster.regular(2, 2), st.DynamicGroups(group_size=4, division=st.GroupSplit.GLOBAL))

    def work(world):
        model = torch.nn.Linear(300, 2, dtype=torch.float64)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(2.0**world.rank)
        optimizer = wrap(world, model, schedule, lr=0.0, initial="keep", algorithm="hierarchical")
        for _ in range(3):
            model(torch.ones(1, 300, dtype=torch.float64)).sum().backward()
            optimizer.step()
        kinds = {members: type(group) for (members, _), group in optimizer.run.reducer.world._groups.items()}
        executed = {members for _, members in optimizer.runner.client.executed}
        optimizer.finish()
        return set(model.weight.flatten().tolist()), kinds, executed

    with serving(GeneratorSetting.of(schedule.strategy, schedule.cluster)) as (_, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        answers = ranks.run(4, work)
    everyone = (0, 1, 2, 3)
    assert all(values == {15 / 4} for values, _, _ in answers)
    assert all(kinds[everyone] is HierarchicalCommunicator and everyone in done for _, kinds, done in answers)


def test_workers_with_different_algorithms_are_named(ranks):
    def work(world):
        return train(world, node_then_all(), "hierarchical" if world.rank == 1 else "ring")

    for error in ranks.run(4, work, catch=HandshakeError):
        assert "algorithm differs: rank 1 has hierarchical; the others have ring" in str(error)


@pytest.mark.parametrize(
    ("word", "device", "kind", "text"),
    [
        ("star", "cpu", InputError, "algorithm: 'star' is not one of ring, hierarchical"),
        (None, "cpu", InputError, "algorithm: None is not one of ring, hierarchical"),
        ("hierarchical", "cuda", MissingDependencyError, "no CUDA stream waits for .* or leave algorithm at ring"),
    ],
)
def test_unsupported_algorithms_raise_one_line_errors(monkeypatch, word, device, kind, text):
    monkeypatch.setenv(OVER_GLOO, "1")
    with pytest.raises(kind, match=text) as refusal:
        chosen_algorithm(word, torch.device(device))
    assert "\n" not in str(refusal.value)
    assert chosen_algorithm("ring", torch.device("cuda")) is st.AllReduceAlgorithm.RING
    monkeypatch.delenv(OVER_GLOO)
    assert chosen_algorithm("hierarchical", torch.device("cuda")) is st.AllReduceAlgorithm.HIERARCHICAL
