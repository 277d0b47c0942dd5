"""Long messages in rounds of pairs: the result equals all-to-all, few are in flight, and every wait ends."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import partreduce
from partreduce.runtime.sharding import table_collectives
from partreduce.runtime.transport import communicators
from partreduce.runtime.transport.communicators import AHEAD, goes_in_rounds, pairwise_exchange
from partreduce.runtime.transport.work import in_thread
from partreduce.strategies import Codec, Gradient, Payload, Placement, TablePlacement

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS, COLUMNS = 64, 6


@pytest.mark.parametrize("size", [2, 3, 5])
def test_pairwise_exchange_equals_all_to_all(ranks, size):
    """Two exchanges of messages of unequal lengths, some of them empty and one to the sender itself."""
    lengths = torch.randint(0, 40, (size, size), generator=torch.Generator().manual_seed(size))
    lengths[torch.rand(size, size, generator=torch.Generator().manual_seed(7)) < 0.3] = 0

    def run(world):
        group = world.create(tuple(range(size)), name=f"rounds {size}")
        sends, receives = lengths[world.rank].tolist(), lengths[:, world.rank].tolist()
        both = []
        for turn in range(2):
            source = torch.randint(0, 255, (sum(sends),), dtype=torch.uint8) + turn
            direct, in_rounds = (torch.empty(sum(receives), dtype=torch.uint8) for _ in range(2))
            group.all_to_all(direct, source, receives, sends).wait()
            in_thread(pairwise_exchange(group, in_rounds, source, receives, sends)).wait()
            both.append((direct, in_rounds))
        return both

    for turns in ranks.run(size, run):
        assert all(torch.equal(direct, in_rounds) for direct, in_rounds in turns)


class RecordingGroup:
    """A group that records its sends, receives and waits."""

    def __init__(self, size):
        self.size, self.place, self.events = size, 1, []

    def exchange(self, sends, receives):
        self.events += [("post", place) for place, _ in receives] + [("send", place) for place, _ in sends]
        return [("came", place) for place, _ in receives] + [("left", place) for place, _ in sends]


def test_receives_are_posted_first_and_few_messages_are_in_flight():
    group, size = RecordingGroup(6), 6
    array = torch.zeros(size, dtype=torch.uint8)
    for work in pairwise_exchange(group, array.clone(), array, [1] * size, [1] * size):
        group.events.append(work)
    others = [(1 - distance) % size for distance in range(1, size)]
    targets = [(1 + distance) % size for distance in range(1, size)]
    assert group.events[: size - 1] == [("post", place) for place in others]
    for index, place in enumerate(targets):
        arrived = [e[1] for e in group.events[: group.events.index(("send", place))] if e[0] == "came"]
        assert arrived == others[: max(0, index - AHEAD + 1)], "as soon as fewer than AHEAD rounds are in flight"
    assert sorted(e for e in group.events if e[0] in ("came", "left")) == sorted(
        [*(("came", place) for place in others), *(("left", place) for place in targets)]
    ), "all are waited for"


@pytest.mark.parametrize(
    ("longest", "group_size", "node_size", "expected"),
    [
        (12_000, 16, 1, False),
        (24_000, 16, 1, True),
        (24_000, 3, 1, False),  # rounds also have two senders at a time
        (3_000_000, 3, 8, False),
        (12_000, 16, 4, True),
        (0, 16, 4, False),
    ],
)
def test_messages_that_would_overflow_a_links_queue_go_in_rounds(longest, group_size, node_size, expected):
    assert goes_in_rounds(longest, group_size, node_size) is expected


@pytest.mark.parametrize(("cluster", "local"), [("4x1", True), ("2x2", False)])
def test_training_in_rounds_has_the_bits_and_bytes_of_all_to_all(ranks, monkeypatch, cluster, local):
    tables = tuple(
        TablePlacement(
            parameter=f"{index}.weight",
            rows=ROWS,
            columns=COLUMNS,
            way=Placement.SHARDED,
            gradient=Gradient.SPARSE,
            codec=codec,
        )
        for index, codec in ((0, Codec.NONE), (1, Codec.FLOAT16))
    )
    plain = partreduce.design(cluster, build="allreduce")
    payload = Payload(tables=tables, local_aggregation=local)
    schedule = replace(plain, strategy=replace(plain.strategy, payload=payload))
    used = []
    monkeypatch.setattr(
        table_collectives,
        "pairwise_exchange",
        lambda group, *given: used.append(group.place) or pairwise_exchange(group, *given),
    )

    def run(world):
        first, second = (nn.Embedding(ROWS, COLUMNS, sparse=True) for _ in range(2))
        model = nn.ModuleList([first, second, nn.Linear(COLUMNS, 1)])
        generator = torch.Generator().manual_seed(3)  # the ranks are threads, which share torch's default generator
        for parameter in model.parameters():
            parameter.data.normal_(generator=generator)
        inner = torch.optim.Adagrad(model.parameters(), lr=0.5)
        optimizer = partreduce.DistributedOptimizer(inner, model, schedule, world=world)
        generator = torch.Generator().manual_seed(world.rank)
        for _ in range(3):
            optimizer.zero_grad()
            ids = torch.randint(0, ROWS, (2, 3 * world.rank), generator=generator)  # worker 0 reads no rows
            (model[2](first(ids[0])).pow(2).sum() + second(ids[1]).pow(2).sum()).backward()
            optimizer.step()
        state, sent = model.state_dict(), optimizer.run.tables.bytes_across
        optimizer.finish()
        return state if world.rank == 0 else None, sent

    direct = ranks.run(4, run)
    assert not used
    monkeypatch.setattr(communicators, "BURST_BYTES", 0)
    in_rounds = ranks.run(4, run)
    assert set(used) == {0, 1, 2, 3}
    assert [sent for _, sent in direct] == [sent for _, sent in in_rounds]
    for name, table in direct[0][0].items():
        assert torch.equal(table, in_rounds[0][0][name]), name


def test_pairwise_exchange_raises_after_a_member_left(ranks):
    """At the latest when the workers that noticed it first destroy their groups, as a failed run does."""

    def run(world):
        group = world.create((0, 1, 2, 3), name="rounds without one")
        problem = ""
        if world.rank < 3:
            array = torch.zeros(4000, dtype=torch.uint8)
            work = in_thread(pairwise_exchange(group, array.clone(), array, [1000] * 4, [1000] * 4))
            assert work.ended_within(60)
            try:
                work.wait()
            except RuntimeError as error:
                problem = str(error)
        world.abandon()
        return problem

    try:
        *problems, _ = ranks.run(4, run)
        assert all(problems), problems
    finally:
        ranks.fresh()
