"""Check by notes in the store that all members reached the same call, before anything is sent.

A worker that makes the call alone (it saves under `if rank == 0`, or loads a state and the others do not) then starts
no operation. Otherwise the members of another operation would receive arrays of another length from it, and gloo would
end their processes; instead all raise an error that names the worker and the remedy.
"""

from __future__ import annotations

import time

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.recorder import Operation
from partreduce.runtime.transport.store import Notes
from partreduce.runtime.transport.waiting import PeerTimeoutError, Wait

POLL_SECONDS = 0.005


def monitored_barrier(reducer: Reducer, place: str, operation: Operation, mine: str) -> dict[int, str]:
    """What each member of `operation` says at `place`, by rank; waits until all have come there.

    A place is used once by each reducer. The advice of the gathering around it is given to who is missing.
    """
    heartbeat, rank = reducer.heartbeat, reducer.world.rank
    notes = Notes(reducer.world.store, f"{place}/{reducer.key}")
    notes.write(str(rank), mine)
    said, waiting = {rank: mine}, [member for member in operation.members if member != rank]
    heartbeat.doing(f"entered {operation}", waiting)

    def why() -> str | None:
        return heartbeat.gone(waiting, operation.rounds_before) or heartbeat.elsewhere(waiting, operation.round)

    wait = Wait(heartbeat, waiting, reducer.timeout, why=why)
    while waiting:
        came = {member: note for member in waiting if (note := notes.read(str(member))) is not None}
        said |= came
        waiting = [member for member in waiting if member not in came]
        if waiting:
            wait.only_for(waiting)
            _look(wait, reducer, operation)
            time.sleep(POLL_SECONDS)
    return said


def _look(wait: Wait, reducer: Reducer, operation: Operation) -> None:
    try:
        wait.look()
    except PeerTimeoutError as late:
        apart = reducer.heartbeat.apart(operation.members, operation.round)
        raise PeerTimeoutError(str(late) if apart is None else f"{apart} (it {late})") from None
