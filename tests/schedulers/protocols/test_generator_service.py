"""Transitions of the group generator, message by message."""

from dataclasses import replace

from helpers.refusals import check_error
from partreduce.schedulers.protocols.base import Crashed, Note, Send
from partreduce.schedulers.protocols.group_generator.buffers import GroupBuffers
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.service import (
    ACTIVE,
    DEAD,
    LEFT,
    Alone,
    Ask,
    Evicted,
    GeneratorState,
    Grant,
    GroupGenerator,
    Later,
    Void,
)
from partreduce.strategies import GroupSplit, SlowWorkerPolicy


class Service:
    """A generator with its state; salts are 0 by default, so a draw takes the lowest ranks."""

    def __init__(self, n=2, *, modulus=None, **facts):
        facts = {"group_size": 2, "division": GroupSplit.RANDOM, "slow_threshold": None} | facts
        self.machine = GroupGenerator(GeneratorSetting(**({"nodes": (0,) * n} | facts)), modulus=modulus)
        self.state = self.machine.initial()

    def ask(self, worker, done=-1, *, request=None, salt=0, **facts):
        """Return the actions after a worker's next request."""
        if request is None:
            request = self.machine.following(self.state.requests[worker])
        return self.send(worker, Ask(request, done, salt=salt, **facts))

    def send(self, worker, message):
        self.state, actions = self.machine.handle(self.state, worker, message)
        return list(actions)

    def give_up(self, worker):
        """Return the actions for other workers when a worker is reported as crashed."""
        return [a for a in self.send(worker, Crashed()) if not (isinstance(a, Send) and a.to == worker)]

    def grants(self, actions):
        return {(a.to, a.message.seq) for a in actions if isinstance(a, Send) and isinstance(a.message, Grant)}


def note_start(seq, *members):
    return Note(("started", seq, members))


def grant(to, seq, *members, generation=0, request=0):
    return Send(to, Grant(generation, request, seq, members))


def test_initial_generator_state():
    assert Service(3).state == GeneratorState(
        buffers=GroupBuffers.empty(3), requests=(-1,) * 3, answers=(None,) * 3, counts=(0,) * 3, alone=(0,) * 3,
        status=(ACTIVE,) * 3, waiting=(), known=(), generation=0, draws=0, costs=(0,) * 3, apart=0,
    )  # fmt: skip


def test_done_reports_count_only_for_the_current_group():
    service = Service(2)
    service.ask(0)
    assert service.ask(0, done=5) == [grant(0, 0, 0, 1, request=1)]
    assert service.state.buffers.locks == (True, True)
    assert service.ask(0, done=-1) == [grant(0, 0, 0, 1, request=2)]
    assert service.ask(0, done=0) == []
    assert service.ask(1, done=7, failed=True) == [grant(1, 0, 0, 1)]
    assert service.state.generation == 0


def test_repeated_request_gets_the_same_answer():
    service = Service(3)
    first = service.ask(0)[-1]
    assert service.ask(0, request=0) == [first]
    service.give_up(2)
    before = service.state
    assert service.ask(0, request=0) == [grant(0, 0, 0, 1, generation=1)]
    assert service.ask(0, request=2) == []  # from another incarnation
    assert service.ask(0, request=-1) == []
    assert service.state == before
    service.ask(0, done=0)
    before = service.state
    assert service.ask(0, done=0, request=1) == []  # owed
    assert service.ask(0, request=0) == []  # late
    assert service.state == before


def test_restart_increments_the_generation():
    service = Service(2)
    service.ask(0)
    state, actions = service.machine.restarted(service.state)
    assert (state, actions) == (replace(service.state, generation=1), ())


def test_departed_worker_is_not_drawn():
    service = Service(2)
    service.ask(1, last=True)
    for times in (1, 2, 3):
        assert service.ask(0) == [Send(0, Alone(0, times - 1))]
        assert service.state.alone == (times, 0)
    service.state = replace(service.state, alone=(99, 0))
    service.ask(0)
    assert service.state.alone == (99, 0)
    service.ask(1)  # the worker returns for another round
    assert service.state.status == (ACTIVE, ACTIVE)
    service.ask(0, done=-1)
    assert service.state.alone == (0, 0)


def broken(n=4, **facts):
    """Return a service in which groups (0, 1) and (2, 3) run."""
    service = Service(n, **facts)
    service.ask(0)
    service.ask(1)
    service.ask(2, salt=2)
    service.ask(3)
    assert [(g.seq, g.members) for g in service.state.buffers.groups] == [(0, (0, 1)), (1, (2, 3))]
    return service


def test_failed_group_is_voided_and_silent_members_are_excluded():
    service = broken()
    service.ask(2, done=1, salt=0)  # (0, 2) waits for 0
    actions = service.ask(0, done=0, failed=True)
    # (0, 2) starts: both are free. Worker 1, which has sent nothing, receives a void message.
    assert actions == [
        Note(("void", 0, (0, 1))), Send(1, Void(1, 0)),
        note_start(2, 0, 2), grant(2, 2, 0, 2, generation=1, request=1), grant(0, 2, 0, 2, generation=1, request=1),
    ]  # fmt: skip
    assert service.state.generation == 1
    assert service.state.status == (ACTIVE, LEFT, ACTIVE, ACTIVE)
    assert service.state.answers[1] == Alone(0, 0), "a repeated request is not answered with the void group"
    assert service.state.answers[3] == Grant(0, 0, 1, (2, 3)), "other answers stay"
    assert service.state.buffers.locks == (True, False, True, True), "no other lock is cleared"
    assert service.ask(1, request=0) == [Send(1, Alone(1, 0))]
    service.ask(1)
    assert service.state.status[1] == ACTIVE


def test_finished_member_is_unaffected_by_a_group_failure():
    service = Service(3, group_size=3)
    for worker in range(3):
        service.ask(worker)
    service.ask(0, done=0)
    actions = service.ask(1, done=0, failed=True)
    assert Send(2, Void(1, 0)) in actions
    assert not [a for a in actions if isinstance(a, Send) and a.message == Void(1, 0) and a.to != 2]
    assert service.state.status == (ACTIVE, ACTIVE, LEFT)
    assert service.state.buffers.groups[-1].members == (0, 1), "worker 2 is removed from the next group"


def test_crash_voids_groups_and_frees_waiting_workers():
    service = broken()
    service.ask(2, done=1, salt=0)  # (0, 2) waits for 0, and worker 2 for its answer
    actions = service.give_up(0)
    assert actions == [Note(("void", 0, (0, 1))), Send(1, Void(1, 0)), Send(2, Alone(1, 1))]
    assert service.state.generation == 1
    assert service.state.status == (DEAD, ACTIVE, ACTIVE, ACTIVE)
    assert service.state.answers[0] == service.state.answers[1] == Alone(0, 0)
    assert service.state.buffers.locks == (False, False, False, True)
    assert service.give_up(0) == []
    assert service.state.generation == 1
    assert service.ask(0) == [Send(0, Evicted(1))]
    assert service.ask(1)[-1].message.members == (1, 2), "crashed workers are not drawn"


def test_draws_use_the_seed_unless_a_salt_is_given():
    def history(seed):
        service = Service(6, seed=seed)
        service.ask(0, salt=None)
        service.ask(5, salt=None)
        return service

    histories = [history(seed) for seed in range(8)]
    assert all(service.state.draws in (1, 2) for service in histories)
    assert len({service.state.buffers.groups[0].members for service in histories}) > 2
    assert history(3).state == history(3).state
    chosen = Service(6)
    chosen.ask(0, salt=3)
    assert chosen.state.draws == 0
    assert chosen.state.buffers.groups[0].members == (0, 4)
    partners = set()
    for _ in range(12):
        many = Service(6, seed=1)
        many.state = replace(many.state, draws=len(partners) + 1)
        partners.add(many.ask(0, salt=None) and many.state.buffers.groups[0].members)
        assert many.state.draws > 1
    assert len(partners) > 1


def test_known_groups_are_recorded_once_and_only_if_bounded():
    for bound, known in ((4, ((0, 1),)), (None, ())):
        service = Service(2, max_known=bound)
        for _ in range(3):
            for worker in (0, 1):
                last = service.state.answers[worker]
                service.ask(worker, done=getattr(last, "seq", -1))
        assert service.state.known == known
    two = Service(4, max_known=4)
    two.ask(0)
    two.ask(2, salt=2)
    assert two.state.known == ((0, 1), (2, 3))


def slow_last(**facts):
    """Return a service of three workers, of which the first two have reported cost 1."""
    facts = {"nodes": (0, 0, 0), "slow_worker_policy": SlowWorkerPolicy.DEFER, "slow_threshold": 4} | facts
    service = Service(3, **facts)
    service.ask(0, cost=1)
    service.ask(1, cost=1)
    return service


def test_slow_worker_is_deferred_then_granted():
    service = slow_last()
    assert service.ask(2, cost=10) == [Send(2, Later(0, 0))]
    assert service.state.answers[2] == Later(0, 0)
    assert service.state.counts == (1, 1, 1)
    assert service.state.costs == (1, 1, 10)
    assert service.state.alone == (0, 0, 0)
    assert service.state.waiting == ()
    assert service.ask(2, request=0) == [Send(2, Later(0, 0))]
    service.ask(0, done=0, cost=1)
    assert all(2 not in group.members for group in service.state.buffers.groups), "a deferred worker is not drawn"
    service.ask(2, computed=True, cost=10)
    assert service.state.counts == (2, 1, 1), "the same round is not counted twice"
    assert 2 in service.state.buffers.groups[-1].members


def test_reported_costs_update_slowness():
    service = slow_last()
    service.ask(2, cost=10)
    service.ask(2, computed=True, cost=1)
    assert service.state.costs == (1, 1, 1)
    assert not service.machine.is_late(service.state, 2)
    service.ask(0, done=0, cost=50)
    assert service.state.costs == (50, 1, 1)
    assert service.machine.is_late(service.state, 0)
    assert service.machine.slow(service.state) == {0}
    gone = replace(service.state, status=(LEFT, ACTIVE, ACTIVE))
    assert service.machine.slow(gone) == frozenset()
    assert Service(2).machine.slow(Service(2).state) is None
    assert not Service(2).machine.is_late(Service(2).state, 0)


def test_deferral_keeps_the_alone_count():
    service = slow_last()
    service.state = replace(service.state, alone=(0, 0, 1))
    service.ask(2, cost=10)
    assert service.state.alone == (0, 0, 1)


def test_slow_worker_with_a_group_is_not_deferred():
    service = slow_last()
    service.ask(0, done=0, cost=1, salt=1)  # (0, 2)
    service.state = replace(service.state, costs=(1, 1, 10))
    actions = service.ask(2, cost=10)
    assert service.grants(actions) == {(2, 1)}


def test_deferred_worker_reporting_a_failure_frees_others():
    service = slow_last()
    service.ask(0, done=0, cost=1, salt=1)
    assert service.grants(service.ask(2)) == {(2, 1)}
    assert service.ask(1, done=0, cost=1) == []  # (0, 1) waits for 0
    assert service.ask(2, done=1, failed=True, cost=10) == [
        Note(("void", 1, (0, 2))), Send(0, Void(1, 1)), Send(2, Later(1, 1)), Send(1, Alone(1, 1)),
    ]  # fmt: skip


def test_requests_since_the_last_global_group_are_counted():
    service = Service(2, nodes=(0, 1), division=GroupSplit.NODE_THEN_ALL, all_every=2)
    for apart in (1, 2, 3):
        assert service.ask(0) == [Send(0, Alone(0, apart - 1))]
        assert service.state.apart == apart
    assert service.ask(0) == [note_start(0, 0, 1), grant(0, 0, 0, 1, request=3)]
    assert service.state.apart == 0
    service.ask(0, computed=True)
    assert service.state.apart == 0, "a round with two requests counts once"
    other = Service(2)
    other.ask(0)
    assert other.state.apart == 0


def test_draw_situation_lists_alive_and_idle_workers():
    service = Service(4, slow_worker_policy=SlowWorkerPolicy.DEFER, slow_threshold=4)
    service.state = replace(
        service.state, status=(ACTIVE, LEFT, ACTIVE, ACTIVE), answers=(Later(0, 0), None, Later(0, 0), None),
        counts=(3, 1, 4, 1), alone=(2, 0, 0, 0), costs=(1, 1, 1, 2), known=((0, 1),),
    )  # fmt: skip
    service.state = replace(service.state, buffers=service.machine.locking.pushed(service.state.buffers, (2, 3)))
    now = service.machine.situation(service.state, 0, 77)
    assert (now.initiator, now.alive, now.idle) == (0, {0, 3}, {0})
    assert (now.counts, now.alone, now.known, now.salt) == ((3, 1, 4, 1), 2, ((0, 1),), 77)
    assert (now.slow, now.due) == ({3}, False)
    assert service.machine.situation(service.state, 3, 0).alive == {3}


def test_endless_runs_wrap_request_numbers_and_counts():
    service = Service(3, modulus=4, slow_threshold=2, slow_worker_policy=SlowWorkerPolicy.PAPER)
    assert [service.machine.following(request) for request in (-1, 0, 2, 3)] == [0, 1, 3, 0]
    assert Service(2).machine.following(3) == 4
    counted = service.machine.counted
    assert counted(replace(service.state, counts=(1, 2, 1)), 0) == (1, 1, 0)
    assert counted(replace(service.state, counts=(1, 1, 0)), 2) == (0, 0, 0)
    assert counted(replace(service.state, counts=(3, 1, 0)), 0) == (3, 1, 0)
    left = replace(service.state, counts=(1, 2, 0), status=(ACTIVE, ACTIVE, LEFT))
    assert counted(left, 0) == (0, 0, 0)
    assert counted(replace(left, counts=(1, 3, 0)), 0) == (0, 1, 0)
    unfiltered = Service(3, modulus=4)
    assert unfiltered.machine.counted(replace(unfiltered.state, counts=(1, 1, 0)), 0) == (1, 1, 0)
    assert Service(3).machine.counted(replace(service.state, counts=(1, 1, 0)), 0) == (2, 1, 0)
    service.ask(0)
    for request in (1, 2, 3, 0, 1):
        service.ask(0, request=request)
        assert service.state.requests[0] == request


def test_unknown_message_raises_assertion_error():
    check_error(AssertionError, "not a message", Service(2).send, 0, "hello")
