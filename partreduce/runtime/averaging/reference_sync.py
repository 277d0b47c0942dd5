"""Set one reference on all workers at the start of a round: a copy of worker 0's parameters.

They first compare digests through the store: if all are already equal, as after the broadcast at the start of a run,
nothing is sent; over slow links a broadcast takes as long as many steps.
"""

from __future__ import annotations

from collections.abc import Callable

from partreduce.runtime.averaging.digest import digest_of
from partreduce.runtime.averaging.monitored_barrier import monitored_barrier
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import OffloadedArray, Reference
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.topo.errors import InputError, UnavailableError

ADVICE = "call load_state_dict() on all workers at the same round, or on none"


def common_start(
    reducer: Reducer, members: tuple[int, ...], starts: int, step: int, round_: int, *, host: Streams | None = None
) -> Reference:
    """The reference of the run's `starts`-th start, from which all members measure their parameters.

    Broadcasts it from the first worker, unless all have it. With `host` it is kept in host memory.
    """
    arrays = [bucket.flat.detach().clone() for bucket in reducer.buckets]
    operation = reducer.recorder.begin("reference", step, round_, members, sum(array.nbytes for array in arrays))
    try:
        with reducer.heartbeat.gathering("a new start", round_, ADVICE):
            # For a digest the host would have to wait for a GPU, whose links are faster anyway.
            digest = "" if reducer.streams.runs_ahead else digest_of(arrays)
            said = monitored_barrier(reducer, f"reference/{starts}", operation, f"{round_} {digest}")
            _check_other_rounds(said, round_)
            all_equal = len(set(said.values())) == 1 and bool(digest)
            everyone = reducer.world.communicator(members)
            for array in arrays:
                if len(array) and not all_equal:
                    reducer.wait_for(everyone.broadcast(array), operation)
    except (RuntimeError, PeerGoneError, UnavailableError) as error:
        raise reducer.failure(operation, error) from None
    reducer.recorder.end(operation)
    return Reference([OffloadedArray(array, host) for array in arrays], starts)


def same_start(
    reducer: Reducer, is_same: Callable[[str], bool], starts: int, round_: int, *, host: Streams | None
) -> Reference:
    """The same where nothing is sent; `is_same` says whether all have this digest."""
    arrays = [bucket.flat.detach().clone() for bucket in reducer.buckets]
    if not is_same(digest_of(arrays)):
        raise InputError(
            f"round {round_}: workers begin with different models, and what is sent is measured from one; load the "
            "same on all, or run it with --tolerate-failures 0, where worker 0's goes to all"
        )
    return Reference([OffloadedArray(array, host) for array in arrays], starts)


def _check_other_rounds(said: dict[int, str], round_: int) -> None:
    """Refuse a start to which members have come at different rounds."""
    for rank, text in said.items():
        if (theirs := text.partition(" ")[0]) != str(round_):
            raise PeerGoneError(f"worker {rank} begins again in round {theirs} and this one in round {round_}")
