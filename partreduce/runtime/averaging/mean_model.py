"""Run operations of all workers: a barrier that detects mismatched calls, common reference parameters, the mean model.

Before any data is sent, all members confirm through the store that they have reached the same call. A worker that calls
alone (it saves under `if rank == 0`, or it alone loads a state) then starts no all-reduce; otherwise its peers would
receive arrays of another length, and gloo would abort their processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from partreduce.runtime.averaging.bucket import Bucket, commit_mean, commit_piggybacked
from partreduce.runtime.averaging.buffer_rules import BufferSpec, check_spec
from partreduce.runtime.averaging.flat_model import FlatModel, digest_of
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.recorder import Operation
from partreduce.runtime.transport.store import Notes, Pauses
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import PeerGoneError, PeerTimeoutError, Wait
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group


def average_model(reducers: Sequence[Reducer], members: tuple[int, ...], step: int, round_: int) -> None:
    """Set the model of all `members` to the mean; `step` and `round_` are for traces and errors. Waits for a device."""
    if len(members) == 1:
        return
    for reducer in reducers:
        reduction = reducer.begin("mean model", step, round_, Group(members))
        reducer.wait(reduction)
        reducer.commit(reduction, commit_plain_mean)
        reducer.flush()


def commit_plain_mean(_index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
    """Write group means, in `sums`, to a bucket's parameters, buffers and optimizer state, unless `ok` is False."""
    commit_mean(bucket, sums, 1.0, ok)
    commit_piggybacked(bucket, sums, ok)


@contextmanager
def restore_local_values(flat: FlatModel, rank: int) -> Iterator[list[torch.Tensor]]:
    """Context in which the model may change; at its end parameters, buffers and averaged optimizer state are restored.

    Yields copies of the parameters: one array per bucket, then the frozen ones. Raises InputError at its end if a
    buffer changed its shape.
    """
    tensors, buffers = _values(flat), dict(flat.named_buffers())
    with torch.no_grad():
        own = [tensor.clone() for tensor in tensors]
        own_buffers = {name: (buffer.clone(), BufferSpec.of(buffer)) for name, buffer in buffers.items()}
    states = [
        (value, value.clone())
        for bucket in flat.buckets
        for tensor in bucket.piggybacked
        if tensor.is_state and (value := tensor.fetch()) is not None
    ]
    problem: InputError | None = None
    try:
        yield own
    finally:
        flat.sharders.reshard()
        with torch.no_grad():
            for tensor, value in zip(_values(flat), own, strict=True):  # a commit may have swapped the arrays
                tensor.copy_(value)
            for tensor, value in states:
                tensor.copy_(value)
            now = dict(flat.named_buffers())
            for name, (value, spec) in own_buffers.items():
                try:
                    check_spec(name, now.get(name), spec, rank, "when mean_model() began")
                except InputError as error:
                    problem = problem or error
                else:
                    now[name].copy_(value)
    if problem is not None:
        raise problem


SAMPLED = 1 << 16  # elements of each bucket that are compared


def sample_of(flat: FlatModel) -> list[torch.Tensor]:
    """Return a sample of the parameters' elements, by which `has_moved` later detects a change of the model."""
    return [array[:: max(1, len(array) // SAMPLED)].clone() for array in flat.arrays()]


def has_moved(flat: FlatModel, before: list[torch.Tensor]) -> bool:
    """Whether the model differs from `before`, a result of `sample_of`, by more than rounding errors."""
    pairs = zip(sample_of(flat), before, strict=True)
    return any(
        bool((now - old).double().norm() > torch.finfo(old.dtype).eps ** 0.5 * old.double().norm())
        for now, old in pairs
    )


def squared_distance(flat: FlatModel, own: list[torch.Tensor]) -> float:
    """Return the squared distance between this worker's saved parameters `own` and the model's current ones."""
    buckets = zip(flat.buckets, own, strict=False)  # the rest of `own` are frozen parameters
    return float(sum((bucket.flat - before).double().square().sum().item() for bucket, before in buckets))


def _values(flat: FlatModel) -> list[torch.Tensor]:
    return [bucket.flat for bucket in flat.buckets] + [p.detach() for p in flat.frozen]


def monitored_barrier(reducer: Reducer, place: str, operation: Operation, mine: str) -> dict[int, str]:
    """Wait until all members of an operation have called this for `place`; return each member's text by rank.

    `mine` is this worker's text, `place` a name that each reducer uses only once. Raises PeerTimeoutError or
    PeerGoneError, which names the missing members.
    """
    heartbeat, rank = reducer.heartbeat, reducer.world.rank
    notes = Notes(reducer.world.store, f"{place}/{reducer.key}")
    notes.write(str(rank), mine)
    gathered, waiting = {rank: mine}, [member for member in operation.members if member != rank]
    heartbeat.doing(f"entered {operation}", waiting)

    def why() -> str | None:
        return heartbeat.failure_reason(waiting, operation.rounds_before) or heartbeat.in_other_gathering(
            waiting, operation.round
        )

    wait, pauses = Wait(heartbeat, waiting, reducer.timeout, why=why), Pauses()
    while waiting:
        arrived = {member: note for member in waiting if (note := notes.read(str(member))) is not None}
        gathered |= arrived
        waiting = [member for member in waiting if member not in arrived]
        if waiting:
            wait.set_members(waiting)
            try:
                wait.check()
            except PeerTimeoutError as late:
                apart = heartbeat.not_in_gathering(operation.members, operation.round)
                raise PeerTimeoutError(str(late) if apart is None else f"{apart} (it {late})") from None
            pauses.sleep()
    return gathered


ADVICE = "call load_state_dict() on all workers at the same round, or on none"


def common_start(
    reducer: Reducer, members: tuple[int, ...], starts: int, step: int, round_: int, *, host: Streams | None = None
) -> Reference:
    """Return reference parameters that are equal on all workers: those of the first worker, which it broadcasts.

    On CPU they are sent only if any differ. `starts` counts the references of this run, for unique names in the store;
    with `host` the result is in host memory. Raises PeerFailedError if a member is gone or calls this in another round.
    """
    arrays = [bucket.flat.detach().clone() for bucket in reducer.buckets]
    gathering = reducer.heartbeat.gathering("a new start", round_, ADVICE)
    num_bytes = sum(array.nbytes for array in arrays)
    with reducer.recorded("reference", step, round_, members, num_bytes) as operation, gathering:
        # Hashing would make the host wait for the GPU, and GPU links are fast enough to always send.
        digest = "" if reducer.streams.runs_ahead else digest_of(arrays)
        gathered = monitored_barrier(reducer, f"reference/{starts}", operation, f"{round_} {digest}")
        for rank, text in gathered.items():
            if (theirs := text.partition(" ")[0]) != str(round_):
                raise PeerGoneError(f"worker {rank} begins again in round {theirs} and this one in round {round_}")
        all_equal = len(set(gathered.values())) == 1 and bool(digest)
        everyone = reducer.world.communicator(members)
        for array in arrays:
            if len(array) and not all_equal:
                reducer.wait_for(everyone.broadcast(array), operation)
    return Reference.of(arrays, starts, host)


def same_start(
    reducer: Reducer, is_same: Callable[[str], bool], starts: int, round_: int, *, host: Streams | None
) -> Reference:
    """Return this worker's parameters as reference parameters, after checking that all workers' are equal.

    `is_same` returns whether all workers have a given digest; no parameters are sent. For `starts` and `host` see
    `common_start`. Raises InputError if the workers' parameters differ.
    """
    arrays = [bucket.flat.detach().clone() for bucket in reducer.buckets]
    if not is_same(digest_of(arrays)):
        raise InputError(
            f"round {round_}: workers begin with different models, and what is sent is measured from one; load the "
            "same on all, or run it with --tolerate-failures 0, where worker 0's goes to all"
        )
    return Reference.of(arrays, starts, host)
