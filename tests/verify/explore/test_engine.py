"""The explorer on protocols with known results."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.explore.explorer import explore
from benchmarks.explore.search import NoDeadlock, PerProcess, PerState, Progress
from benchmarks.explore.system import Network
from helpers.refusals import check_error
from partreduce.errors import InputError, RefutedError, UndecidedError
from partreduce.schedulers.protocols.base import Crashed, Note, Received, Send


@dataclass(frozen=True)
class StopAndWait:
    """Sender 0 sends `items` numbers to receiver 1 over a lossy link; with `bit`, the alternating-bit protocol."""

    items: int = 3
    bit: bool = True
    num_processes = 2
    channels = ((0, 1), (1, 0))

    def start(self, process):
        return (("sending", 0, 0), ()) if process == 0 else ((0, 0), ())

    def finished(self, process, state):
        return process == 1 or state[1] == self.items

    def ready(self, process, state):
        return ("send",) if process == 0 and state[0] == "sending" and state[1] < self.items else (
            ("timeout",) if process == 0 and state[0] == "waiting" else ()
        )  # fmt: skip

    def step(self, process, state, event):
        match process, event:
            case 0, "send" | "timeout":
                return ("waiting", state[1], state[2]), (Send(1, ("item", state[1], state[2])),)
            case 0, Received(_, ("ack", bit)):
                if state[0] == "waiting" and (bit == state[2] or not self.bit):
                    return ("sending", state[1] + 1, 1 - state[2]), ()
                return state, ()
            case 1, Received(_, ("item", number, bit)):
                got, expected = state
                if bit == expected or not self.bit:
                    return (got + 1, 1 - expected), (Send(0, ("ack", bit)), Note(("took", number)))
                return state, (Send(0, ("ack", bit)),)
        raise AssertionError((process, event))


def bounded_line(view):
    """Keep the number of states finite by a link with few messages."""
    return all(len(messages) <= 2 for messages in view.in_flight.values())


def in_order(view):
    sender, receiver = view.processes
    return None if receiver[0] in (sender[1], sender[1] + 1) else f"sent {sender[1]}, taken {receiver[0]}"


SAFE = PerState("nothing lost or doubled", in_order)


@dataclass(frozen=True)
class Impatient(StopAndWait):
    """Send at most one more copy of each item, so that the link holds few messages."""

    def start(self, process):
        return (("sending", 0, 0, 0), ()) if process == 0 else ((0, 0), ())

    def ready(self, process, state):
        if process or state[1] >= self.items:
            return ()
        return ("send",) if state[0] == "sending" else (("timeout",) if state[3] < 1 else ())

    def step(self, process, state, event):
        if process:
            return super().step(process, state, event)
        after, actions = super().step(process, state[:3], event)
        copies = 0 if after[0] == "sending" else state[3] + (event == "timeout")
        return (*after, copies), actions


def test_alternating_bit_tolerates_loss_and_duplication():
    found = explore(Impatient(), properties=(SAFE,), network=Network(losses=1, duplicates=1))
    assert found.holds
    assert found.states > 200


def test_duplicate_without_the_bit_is_found_with_a_shortest_trace():
    found = explore(Impatient(bit=False), properties=(SAFE,), network=Network(duplicates=1))
    finding = found.finding("nothing lost or doubled")
    assert finding.verdict == "fails"
    assert [step.verb for step in finding.trace.steps] == ["step", "repeat", "deliver"]
    assert "will arrive again" in str(finding.trace)


def test_lost_message_deadlocks_a_sender_without_timeout():
    class Trusting(StopAndWait):
        def ready(self, process, state):
            return tuple(e for e in super().ready(process, state) if e != "timeout")

    assert explore(Trusting(), network=Network()).holds
    found = explore(Trusting(), network=Network(losses=1))
    assert [step.verb for step in found.finding("no deadlock").trace.steps] == ["step", "lose"]
    with pytest.raises(RefutedError, match="no deadlock"):
        found.require()


def test_truncated_search_is_undecided():
    found = explore(StopAndWait(items=50), properties=(SAFE, NoDeadlock()), max_states=40)
    assert not found.complete
    assert not found.holds
    assert {finding.verdict for finding in found.findings} == {"unknown"}
    assert found.states == 40
    check_error(UndecidedError, "40 states", found.require)


def test_violation_before_the_state_limit_is_reported():
    found = explore(Impatient(bit=False, items=9), properties=(SAFE,), network=Network(duplicates=1), max_states=60)
    assert found.finding("nothing lost or doubled").verdict == "fails"


@dataclass(frozen=True)
class TwoSpinners:
    """Two processes that take steps forever."""

    num_processes = 2
    channels = ((0, 1),)

    def start(self, process):
        return 0, ()

    def ready(self, process, state):
        return ("turn",)

    def step(self, process, state, event):
        return (1 - state, ()) if event == "turn" else (state, ())


def test_weak_fairness_schedules_every_enabled_process():
    goal = Progress("1 turns", lambda label: label.verb == "step" and label.process == 1)
    assert explore(TwoSpinners(), properties=(goal,)).holds


@dataclass(frozen=True)
class Door:
    """Process 0 opens and closes a door forever by messages; process 1 may always find the door closed."""

    num_processes = 2
    channels = ((0, 1),)

    def start(self, process):
        return "shut", ()

    def ready(self, process, state):
        if process == 0:
            return ("flip",)
        return ("enter",) if state == "open" else ()

    def step(self, process, state, event):
        flipped = "open" if state == "shut" else "shut"
        if process == 0:
            return flipped, (Send(1, flipped),)
        if event == "enter":
            return "inside", ()
        return ("inside" if state == "inside" else event.message), ()


def test_starvation_under_fairness_is_found_as_a_lasso():
    found = explore(
        Door(),
        properties=(Progress("1 gets in", lambda label: label.verb == "step" and label.process == 1),),
        network=Network(delay=False),
        within=lambda view: view.processes[1] != "inside",
    )
    finding = found.finding("1 gets in")
    assert finding.verdict == "fails"
    assert finding.trace.loop is not None
    assert "repeat" in str(finding.trace)


def test_crash_stops_a_process_and_is_detectable():
    seen = []

    class Watching(TwoSpinners):
        def step(self, process, state, event):
            if isinstance(event, Received):
                seen.append((process, event.source))
                return 7, ()
            return super().step(process, state, event) if state != 7 else (state, ())

    found = explore(Watching(), network=Network(crashes=1, detect=True))
    assert found.complete
    assert set(seen) == {(1, 0)}
    silent = explore(TwoSpinners(), network=Network(crashes=1))
    assert silent.states == 2 * 2 + 2 + 2


def test_exception_in_a_transition_is_a_finding_with_a_trace():
    class Fragile(TwoSpinners):
        def step(self, process, state, event):
            if process == 1 and state == 1:
                raise KeyError("spindle")
            return super().step(process, state, event)

    found = explore(Fragile())
    assert not found.holds
    finding = found.finding("no error in a transition")
    assert finding.verdict == "fails"
    assert "spindle" in finding.problem
    assert [step.process for step in finding.trace.steps] == [1]


def test_reordering_reaches_more_states_than_fifo():
    @dataclass(frozen=True)
    class Talker(TwoSpinners):
        def start(self, process):
            return (), (Send(1, "a"), Send(1, "b")) if process == 0 else ()

        def ready(self, process, state):
            return ()

        def step(self, process, state, event):
            return (*state, event.message), ()

        def finished(self, process, state):
            return True

    orders = {True: set(), False: set()}
    for reorder, heard in orders.items():
        keep = PerProcess("heard", lambda process, state, heard=heard: heard.add(state) if process else None)
        assert explore(Talker(), properties=(keep,), network=Network(reorder=reorder)).holds
    assert ("b", "a") in orders[True]
    assert ("b", "a") not in orders[False]


@dataclass(frozen=True)
class Suspects(TwoSpinners):
    """Process 0 may suspect process 1, which continues in any case."""

    suspects = ((1, 0),)

    def step(self, process, state, event):
        if isinstance(event, Received):
            return "alone", (Note("gave it up"),)
        return (state if state == "alone" else 1 - state), ()


def test_suspected_process_continues():
    went_on = PerState("is still", lambda view: "it turns" if view.processes == ("alone", 1) else None)
    found = explore(Suspects(), properties=(went_on,), network=Network(suspicions=1))
    trace = found.finding("is still").trace
    assert [step.verb for step in trace.steps] in (["suspect", "step"], ["step", "suspect"])
    assert "0 takes 1 for dead (gave it up)" in str(trace)
    assert explore(Suspects(), network=Network(suspicions=1)).states == 2 * 2 + 2
    assert explore(Suspects(), network=Network()).states == 4


def test_crashed_process_is_never_part_of_a_suspicion():
    seen = []
    keep = PerState("seen", lambda view: seen.append(view.processes))
    assert explore(Suspects(), properties=(keep,), network=Network(suspicions=1, crashes=2)).complete
    assert ("alone", None) in seen  # first suspected, then crashed
    seen.clear()
    assert explore(Suspects(), properties=(keep,), network=Network(suspicions=1, crashes=1)).complete
    assert (None, None) not in seen


@dataclass(frozen=True)
class Letters:
    """Process 0 sends two letters; both processes record received letters and suspicions."""

    num_processes = 2
    channels = suspects = ((0, 1), (1, 0))

    def start(self, _process):
        return (), ()

    def ready(self, process, state):
        return ("write",) if not process and len([one for one in state if one != "gone"]) < 2 else ()

    def step(self, _process, state, event):
        if event == "write":
            letter = "second" if "first" in state else "first"
            return (*state, letter), (Send(1, letter),)
        return (*state, "gone" if event.message == Crashed() else event.message), ()


@pytest.mark.parametrize("delay", [True, False])
def test_cut_link_delivers_a_prefix_and_notifies_both_sides(delay):
    seen, cut = set(), set()

    def note(view):
        seen.add(view.processes)
        if view.cut_off:
            cut.add(view.processes)

    keep = PerState("seen", note)
    assert explore(Letters(), properties=(keep,), network=Network(cuts=1, delay=delay)).complete
    got = {got for _, got in seen}
    whole = ("first", "second")
    assert got == {(*whole[:count], *gone) for count in range(3) for gone in ((), ("gone",))}
    assert (whole, ("gone",)) in cut, "both letters are lost"
    assert (("gone", *whole), ("gone",)) in cut, "it continues behind the cut"
    assert {got for sent, got in seen if sent[:1] == ("gone",) and got[:1] == ("first",)} == set(), "written too late"


def test_invalid_networks_and_properties_are_refused():
    check_error(InputError, "share a name", explore, TwoSpinners(), properties=(SAFE, SAFE))
    check_error(InputError, "set delay", Network, delay=False, losses=1)
    check_error(InputError, "keep their order", Network, cuts=1, reorder=True)
    check_error(InputError, "suspicions and cuts are numbers", Network, cuts=-1)
    check_error(InputError, "suspicions and cuts are numbers", Network, suspicions=-1)
    for network in (Network(cuts=1), Network(suspicions=1)):
        check_error(InputError, "takes another process for dead", explore, TwoSpinners(), network=network)


def test_trace_names_the_disconnected_process():
    never = PerState("never", lambda view: "heard" if "gone" in view.processes[1] else None)
    trace = explore(Letters(), properties=(never,), network=Network(cuts=1)).finding("never").trace
    assert str(trace).startswith("  1. 0 is cut off\n  2. 0 → 1: Crashed() arrives")
