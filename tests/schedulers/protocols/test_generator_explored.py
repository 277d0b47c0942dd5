"""The group generator through every interleaving of small systems, and its draws through every situation."""

import pytest

from benchmarks.explore.generator import SMALL, divided, random, smart
from helpers.group_draw_laws import broken_law
from partreduce import Cluster
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.group_generator.draw import Drawing, GeneratorSetting, order_from_salt, salt_of
from partreduce.schedulers.protocols.group_generator.service import Ask, Grant, GroupGenerator, Void
from partreduce.strategies import DynamicGroups, GroupSplit, SlowWorkerPolicy


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_every_property_holds_in_every_state(configuration):
    assert configuration.run().require().holds


DRAWS = [
    GeneratorSetting(nodes=nodes, group_size=size, division=division, slow_threshold=threshold, slow_worker_policy=rule)
    for nodes in ((0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1, 1))
    for size in (2, 3)
    for division in GroupSplit
    for threshold in (None, 2)
    for rule in SlowWorkerPolicy
    if rule != SlowWorkerPolicy.DEFER and (len(nodes) < 5 or rule == SlowWorkerPolicy.PAIR_LOCALLY)
    if division != GroupSplit.NODE_THEN_ALL or (size == 2 and len(set(nodes)) < len(nodes))  # it looks at no group size
]


@pytest.mark.parametrize("setting", DRAWS, ids=range(len(DRAWS)))
def test_draws_obey_every_law(setting):
    assert broken_law(Drawing(setting)) is None


def test_orders_drawn_from_a_seed_are_uniform():
    """Chi-squared over the 24 orders of 4 workers: 23 degrees of freedom, so above 60 less than once in 30,000."""
    counts = {}
    for draw in range(4800):
        order = tuple(order_from_salt(frozenset(range(4)), salt_of(7, draw, 4)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 60


def test_known_groups_are_bounded_and_every_worker_goes_on_averaging():
    cluster = Cluster.regular(2, 4)
    setting = GeneratorSetting.of(DynamicGroups(group_size=3, slow_threshold=None, max_known=4), cluster)
    machine = GroupGenerator(setting)
    state, granted = machine.initial(), [0] * 8
    for _ in range(60):
        for worker in range(8):
            last = state.answers[worker]
            if state.requests[worker] >= 0 and last is None:
                continue  # it waits
            done = getattr(last, "seq", -1)
            state, actions = machine.handle(state, worker, Ask(state.requests[worker] + 1, done))
            for action in actions:
                if type(getattr(action, "message", None)).__name__ == "Grant":
                    granted[action.to] += 1
    drawn = [sum(worker in group for group in state.known) for worker in range(8)]
    assert max(drawn) <= 5, drawn  # the group that reaches the bound of one member may be new to another
    assert min(granted) > 20, granted


@pytest.mark.parametrize("setting", [divided((0, 0, 1, 1)), random((0, 0, 1, 1)), smart((0, 0, 1, 1), None)])
def test_no_group_is_granted_with_a_member_that_is_silent_since_its_group_failed(setting):
    """Worker 3 dies inside a group; nobody tells the generator who it was, and the survivors go on."""
    machine = GroupGenerator(setting)
    state, inbox = machine.initial(), {}

    def ask(worker, **facts):
        nonlocal state
        state, actions = machine.handle(state, worker, Ask(state.requests[worker] + 1, **facts))
        inbox.update({a.to: a.message for a in actions if isinstance(a, Send) and not isinstance(a.message, Void)})

    for worker in range(4):
        ask(worker)
    while not (isinstance(inbox.get(3), Grant)):
        for worker in [w for w in range(4) if w in inbox]:
            ask(worker, done=getattr(inbox.pop(worker), "seq", -1))
    broken, failed, later = inbox[3], [], []
    for _ in range(60):
        for worker in [w for w in range(3) if w in inbox]:
            answer = inbox.pop(worker)
            lost = isinstance(answer, Grant) and 3 in answer.members
            (failed if lost else later).append(answer)
            ask(worker, done=getattr(answer, "seq", -1), failed=lost)
    assert {answer.seq for answer in failed} <= {broken.seq}
    granted = [answer for answer in later if isinstance(answer, Grant)]
    assert len(granted) > 60
    assert {worker for answer in granted for worker in answer.members} == {0, 1, 2}
