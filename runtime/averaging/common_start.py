"""Common start: all workers take one reference, a copy of worker 0's parameters, as a round begins.

They meet in the store first, each with a digest of its own: where all are equal already, as after the broadcast at the
start of a run, nothing is sent, which over slow links takes as long as many steps. A worker that came here alone (it
loaded a state and the others did not) is then in no operation, so that those who wait for it in another one are not
answered with arrays of another length, over which gloo would end the process; all of them give up with its name.
"""

from __future__ import annotations

import time
from hashlib import blake2b

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.recorder import Operation
from partreduce.runtime.transport.notes import Notes
from partreduce.runtime.transport.waiting import GoneError, Wait
from partreduce.topo.errors import UnavailableError

ADVICE = "call load_state_dict() on all workers at the same round, or on none"
POLL_SECONDS = 0.005


def common_start(reducer: Reducer, members: tuple[int, ...], starts: int, step: int, round_: int) -> Reference:
    """The reference of the run's `starts`-th start, from which all members measure their parameters.

    Broadcasts it from the first worker, unless all have it.

    Raises:
        PeerLostError: a worker is gone, too late, or at another round.
    """
    arrays = [bucket.flat.detach().clone() for bucket in reducer.buckets]
    operation = reducer.recorder.begin("reference", step, round_, members, sum(array.nbytes for array in arrays))
    try:
        with reducer.heartbeat.gathering("a new start", round_, ADVICE):
            # For a digest the host would have to wait for a GPU, whose links are faster anyway.
            digest = "" if reducer.streams.runs_ahead else _digest(arrays)
            all_equal = _meet(reducer, operation, starts, digest) and bool(digest)
            everyone = reducer.world.communicator(members)
            for array in arrays:
                if len(array) and not all_equal:
                    reducer.wait_for(everyone.broadcast(array), operation)
    except (RuntimeError, GoneError, UnavailableError) as error:
        raise reducer.failure(operation, error) from None
    reducer.recorder.end(operation)
    return Reference(arrays, starts)


def _digest(arrays: list[torch.Tensor]) -> str:
    """A fingerprint of the arrays' bits."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _meet(reducer: Reducer, operation: Operation, starts: int, digest: str) -> bool:
    """Wait until all members have come to the same start at the same round; whether all have the same digest.

    Raises:
        GoneError: one is gone, at another round, or does not come within the timeout.
    """
    heartbeat, round_ = reducer.heartbeat, operation.round
    notes = Notes(reducer.world.store, f"reference/{reducer.key}/{starts}")
    notes.write(str(reducer.world.rank), f"{round_} {digest}")
    waiting = [rank for rank in operation.members if rank != reducer.world.rank]
    heartbeat.doing(f"entered {operation}", waiting)
    wait = Wait(heartbeat, waiting, reducer.timeout)
    digests = {digest}
    while waiting:
        for rank in list(waiting):
            theirs = notes.read(str(rank))
            if theirs is None:
                continue
            their_round, _, their_digest = theirs.partition(" ")
            if int(their_round) != round_:
                raise GoneError(f"worker {rank} begins anew in round {their_round} and this one in round {round_}")
            digests.add(their_digest)
            waiting.remove(rank)
            wait.only_for(waiting)
        if waiting:
            wait.look()
            time.sleep(POLL_SECONDS)
    return len(digests) == 1
