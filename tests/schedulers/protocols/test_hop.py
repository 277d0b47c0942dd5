"""Hop's worker against a second one, written from the paper with sets of step numbers instead of bit queues."""

from dataclasses import replace

import pytest

from benchmarks.explore.reductions import Hop
from helpers.machine_invariants import Walk, check_renaming
from helpers.refusals import check_error
from helpers.second_hop import SecondHop
from partreduce.errors import InputError
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import Ack, Advance, Token, Update
from partreduce.strategies import IterationGap, SkipPolicy

RING = Digraph.of(3, [(0, 1), (1, 2), (2, 0)])
BOTH_WAYS = Digraph.undirected(3, [(0, 1), (1, 2), (2, 0)])
UNEVEN = Digraph.of(4, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (0, 2), (1, 3)])
STAR = Digraph.undirected(4, [(0, 1), (0, 2), (0, 3)])

SETTINGS = {
    "standard": IterationGap(),
    "tokens 0": IterationGap(max_ig=0),
    "tokens 1": IterationGap(max_ig=1),
    "tokens 3": IterationGap(max_ig=3),
    "backup": IterationGap(backup=1, max_ig=2),
    "backup of one": IterationGap(backup=(1, 0, 0, 0), max_ig=2),
    "stale": IterationGap(staleness=1),
    "stale with tokens": IterationGap(staleness=2, max_ig=3),
    "stale with backup": IterationGap(staleness=2, max_ig=2, backup=1),
    "skips": IterationGap(max_ig=3, skip=SkipPolicy(limit=3), staleness=2),
    "skips with backup": IterationGap(max_ig=3, skip=SkipPolicy(limit=3), backup=1),
    "long skips": IterationGap(max_ig=4, skip=SkipPolicy(limit=4, trigger=3), backup=1, staleness=1),
    "skips of 2 from 4 behind": IterationGap(max_ig=2, skip=SkipPolicy(limit=2, behind=4), backup=1, staleness=2),
    "notify-ack": IterationGap(notify_ack=True),
    "notify-ack with tokens": IterationGap(notify_ack=True, max_ig=1),
}
GRAPHS = {"ring": RING, "both ways": BOTH_WAYS, "uneven": UNEVEN, "star": STAR}
CASES = [
    (graph, setting, fine)
    for graph in GRAPHS
    for setting, value in SETTINGS.items()
    for fine in ((False, True) if not value.notify_ack else (False,))
    if not isinstance(value.backup, tuple) or GRAPHS[graph].num_workers == 4
]


@pytest.mark.parametrize(("graph", "setting", "fine"), CASES)
@pytest.mark.parametrize("in_order", [True, False])
def test_worker_matches_the_second_hop(graph, setting, fine, in_order):
    """Worker 0 is slow, so that gaps occur."""
    machine = Hop(GRAPHS[graph], SETTINGS[setting], fine=fine)
    second = SecondHop(machine.graph, machine.setting, fine)
    walk = Walk(machine, seed=len(graph) * 100 + len(setting), in_order=in_order, slow=(0,))
    for v in range(machine.num_processes):
        state, actions = machine.start(v)
        assert list(actions) == ([] if second.split else second.updates(v))
        assert list(machine.ready(v, state)) == second.events(v)
    for process, before, event, after, actions in walk.steps(80):
        assert list(machine.ready(process, before)) == second.events(process)
        assert list(actions) == second.do(process, event)
        assert list(machine.ready(process, after)) == second.events(process)
        assert after.step == second.workers[process].step
        assert all(queue >= 0 for queue in after.updates)
        if machine.setting.staleness:
            assert all(queue.bit_count() <= 1 for queue in after.updates)
        sent = {(a.to, process) for a in actions if isinstance(a, Send) and isinstance(a.message, Token | Ack)}
        assert sent <= {(u, process) for u, _ in machine.graph.edges}
        assert {(process, a.to) for a in actions if isinstance(a, Send)} <= set(machine.channels)


def renamed_note(what, permutation):
    word, step, *used = what
    return (word, step, *(tuple(sorted((permutation[u], k) for u, k in pairs)) for pairs in used))


@pytest.mark.parametrize("setting", ["standard", "tokens 1", "skips", "skips with backup", "notify-ack with tokens"])
@pytest.mark.parametrize("graph", ["ring", "both ways", "star"])
def test_hop_commutes_with_renaming(graph, setting):
    machine = Hop(GRAPHS[graph], SETTINGS[setting], fine=True)
    assert len(machine.symmetries()) == {"ring": 3, "both ways": 6, "star": 6}[graph]
    check_renaming(machine, seed=5, note=renamed_note)
    check_renaming(replace(machine, fine=False), seed=6, note=renamed_note)


def test_renaming_keeps_backup_workers():
    """Only worker 1 of the star has a backup worker, so only the two other leaves can be exchanged."""
    machine = Hop(STAR, IterationGap(backup=(0, 1, 0, 0), max_ig=2))
    assert set(machine.symmetries()) == {(0, 1, 2, 3), (0, 1, 3, 2)}
    check_renaming(machine, seed=7, note=renamed_note)


def test_renaming_permutes_every_queue():
    """Queues are ordered by neighbor; the new ranks reverse that order."""
    machine = Hop(BOTH_WAYS, IterationGap(notify_ack=True, max_ig=2))
    state = replace(machine.start(0)[0], updates=(1, 0), tokens=(5, 6), acked=(True, False))
    turned = machine.renamed(0, state, (0, 2, 1))
    assert (turned.updates, turned.tokens, turned.acked) == ((0, 1), (6, 5), (False, True))
    stale = Hop(BOTH_WAYS, IterationGap(staleness=1), fine=True)
    assert stale.renamed(0, replace(stale.start(0)[0], fresh=(True, False)), (0, 2, 1)).fresh == (False, True)
    bare = Hop(BOTH_WAYS, IterationGap())
    assert bare.renamed(0, bare.start(0)[0], (0, 2, 1)) == bare.start(0)[0]


@pytest.mark.parametrize("setting", ["standard", "stale with tokens", "long skips", "notify-ack"])
def test_hop_commutes_with_shifting_steps(setting):
    machine = Hop(BOTH_WAYS, SETTINGS[setting], fine=True)

    def later(message):
        return machine.shifted_message(message, -1000)

    for process, before, event, after, actions in Walk(machine, seed=3).steps(80):
        moved = Received(event.source, later(event.message)) if isinstance(event, Received) else event
        state, sent = machine.step(process, machine.shifted(process, before, -1000), moved)
        assert state == machine.shifted(process, after, -1000)
        assert machine.clock(process, state) == after.step + 1000
        for one, other in zip(sent, actions, strict=True):
            if isinstance(other, Send):
                assert one == Send(other.to, later(other.message))
            else:
                word, step, *used = other.what
                assert one == Note((word, step + 1000, *(tuple((u, k + 1000) for u, k in pairs) for pairs in used)))
    assert later(Update(4)) == Update(1004)
    assert later(Token(4)) == Token(4)
    assert later(Ack()) == Ack()


def test_tokens_and_acknowledgements_add_reverse_channels():
    back = sorted({*RING.edges, *((v, u) for u, v in RING.edges)})
    assert list(Hop(RING, IterationGap()).channels) == list(RING.edges)
    assert list(Hop(RING, IterationGap(max_ig=1)).channels) == back
    assert list(Hop(RING, IterationGap(notify_ack=True)).channels) == back
    assert Hop(RING, IterationGap()).num_processes == 3


def test_settings_invalid_for_the_graph_are_refused():
    """tests/topo/document/test_kinds.py covers every rule."""
    check_error(InputError, "skip: tokens say where", Hop, RING, IterationGap(skip=SkipPolicy(limit=2), backup=1))
    with pytest.raises(InputError, match=r"backup\[1\]: is 2, but worker 1 has only 1 in-neighbors"):
        Hop(RING, IterationGap(backup=(0, 2, 0)))


def test_backups_expand_to_one_number_per_worker():
    assert IterationGap(backup=2).backups(3) == (2, 2, 2)
    assert IterationGap(backup=(0, 1)).backups(2) == (0, 1)
    assert IterationGap().backups(2) == (0, 0)
    assert IterationGap(backup=()).backups(0) == ()


def test_unknown_event_raises_assertion_error():
    machine = Hop(RING, IterationGap())
    check_error(AssertionError, "not an event", machine.step, 0, machine.start(0)[0], "hello")
    assert Advance().by == 1
