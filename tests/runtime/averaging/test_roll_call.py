"""Roll call: who comes to one place is answered with what was said there, and not elsewhere or at another time."""

import time

import torch

import partreduce
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, StaticGroups

PAIRS = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [[0, 1], [2, 3]]),)))


def made(world, num_workers, strategy):
    model = torch.nn.Linear(1, 1, bias=False)
    schedule = Schedule("met", Cluster.regular(1, num_workers), strategy)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, DistributedOptimizer(inner, model, schedule, world=world, timeout=60)


def test_two_places_of_one_gathering_and_of_the_next_are_told_apart(ranks):
    """A fast worker comes to the second place while the slow one's words of the first are still there."""
    hearts = {}

    def run(world):
        _, optimizer = made(world, 2, StaticGroups(phases=GroupPhases((Phase.from_groups(2, [[0, 1]]),))))
        heartbeat = hearts[world.rank] = optimizer.run.reducer.heartbeat
        answers = []
        for gathering in range(2):
            with heartbeat.gathering("a meeting", 0):
                for what in ("first place", "second place"):
                    if world.rank == 1 and answers:
                        deadline = time.monotonic() + 60
                        while what not in hearts[0].last[0]:
                            assert time.monotonic() < deadline
                            time.sleep(0.005)
                        time.sleep(0.05)  # rank 0 looks at what is there
                    answers.append(optimizer.meeting.exchange(what, {"said": [gathering, what, world.rank]}))
        optimizer.finish()
        return answers

    expected = [
        [{"said": [gathering, what, rank]} for rank in range(2)]
        for gathering in range(2)
        for what in ("first place", "second place")
    ]
    assert ranks.run(2, run) == [expected] * 2


def test_a_checkpoint_after_different_rounds_is_refused_on_all_workers_with_the_rounds(ranks, tmp_path):
    """Two pairs that never wait for one another may come after different numbers of rounds."""

    def run(world):
        model, optimizer = made(world, 4, PAIRS)
        for _ in range(3 if world.rank < 2 else 1):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        partreduce.save_checkpoint(optimizer, tmp_path)

    errors = ranks.run(4, run, catch=InputError)
    ranks.fresh()
    assert {str(error) for error in errors} == {
        "save_checkpoint: workers came after 1, 3 rounds; all call it after the same one"
    }
    assert not list(tmp_path.iterdir())
