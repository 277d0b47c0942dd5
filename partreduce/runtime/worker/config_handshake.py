"""Check the user's settings on this worker, then compare them over all workers before anything is sent."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

import partreduce
from partreduce.runtime.arguments import checked_choice
from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy
from partreduce.runtime.environment import MAX_FAILED
from partreduce.runtime.liveness.handshake import handshake
from partreduce.runtime.liveness.keepalive_sockets import KeepaliveSockets, lifelines_of
from partreduce.runtime.transport.rendezvous import SingleProcessWorld, default_world, is_alone
from partreduce.runtime.transport.store import NamedPrefixStore, Notes, publish_stage
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.worlds import World, check_stages_over_gloo
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError, PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, Transport


@dataclass(frozen=True, slots=True)
class Policies:
    """The user's options `buffers`, `optimizer_state`, `initial` (`broadcast`) and `outer_state` (`keeps_on_host`)."""

    buffers: BufferPolicy
    optimizer_state: StatePolicy
    broadcast: bool
    keeps_on_host: bool = False  # whether outer parameters and momentum are in host memory; workers may differ

    @classmethod
    def chosen(cls, buffers: str, optimizer_state: str, initial: str, outer_state: str) -> Policies:
        chosen_buffers = BufferPolicy(checked_choice("buffers", buffers, BufferPolicy))
        chosen_state = StatePolicy(checked_choice("optimizer_state", optimizer_state, StatePolicy))
        checked_choice("initial", initial, ("broadcast", "keep"))
        checked_choice("outer_state", outer_state, ("device", "host"))
        return cls(chosen_buffers, chosen_state, initial == "broadcast", outer_state == "host")

    def check_combinations(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        average_states = self.optimizer_state is StatePolicy.AVERAGE
        if self.keeps_on_host and schedule.strategy.payload.outer.is_plain:
            raise InputError(
                f"outer_state: is 'host', and schedule {schedule.name!r} has no outer steps, so no anchor; leave it out"
            )
        if schedule.strategy.averages_gradients and isinstance(optimizer, torch.optim.LBFGS):
            raise InputError(
                "optimizer: LBFGS evaluates its closure several times; average parameters instead (steps_per_round > 1)"
            )
        if average_states and schedule.strategy.averages_gradients:
            raise InputError(
                "optimizer_state='average': with averaged gradients the states are equal already; use 'local'"
            )
        if average_states and (schedule.strategy.mixes_late or schedule.strategy.sync.late_steps):
            raise InputError("optimizer_state='average': cannot be delayed with overlap; use 'local' or no overlap")

    def check_apart(self, schedule: Schedule) -> None:
        """Raise InputError for `initial='keep'` if the schedule's codec or outer steps need equal initial models."""
        outer = schedule.strategy.payload.outer
        if not self.broadcast and outer.in_words and not outer.has_own_outer_params:
            raise InputError(
                f"initial='keep': {outer.in_words} measures what workers moved since they were equal; use 'broadcast', "
                "or no outer optimizer"
            )
        if not self.broadcast and not schedule.strategy.averages_gradients and schedule.strategy.transport.codec.rounds:
            raise InputError(
                f"initial='keep': codec {schedule.strategy.transport.codec.value!r} rounds what workers added since "
                "they were equal, and models that start from different weights differ by more than that; "
                "use 'broadcast' or no codec"
            )


class HandshakeResult(NamedTuple):
    """Result of a handshake: the connection to all workers, the optimizer's key (equal on all), keepalive sockets."""

    world: World
    key: str
    lifelines: KeepaliveSockets | None = None


def agree(
    facts: Mapping[str, str],
    details: Mapping[str, Sequence[str]],
    world: World | None,
    device: torch.device,
    timeout: float,
    *,
    mesh: DeviceMesh | None = None,
    replica: Sequence[int] = (),
) -> HandshakeResult:
    """Connect to the run, and compare `facts` and their `details` over all workers, as `handshake` does.

    `world` is a connection that exists already; without it the launcher's is used, or none in a single process. With a
    `mesh` each sharded replica, whose ranks are `replica`, is one worker. `timeout` is in seconds.
    """
    if is_alone(world, mesh):
        return HandshakeResult(SingleProcessWorld(), "alone")
    if world is not None:
        key = str(world.next_instance())
        handshake(world.store, world.rank, world.size, facts, details=details, key=key, timeout=timeout)
        return HandshakeResult(world, key)

    key = ""
    lifelines: KeepaliveSockets | None = None

    def check(store: Store, rank: int, size: int) -> None:
        nonlocal key, lifelines
        key = str(next(_keys))  # counted only once the store has answered
        publish_stage(store, rank, "was in the handshake")
        if not os.environ.get(MAX_FAILED):  # otherwise the launcher reports deaths and replacements
            lifelines = lifelines_of(store, rank, size, key)
        if replica:
            Notes(store, "processes").write(str(rank), json.dumps(list(replica)))
        handshake(store, rank, size, facts, details=details, key=key, timeout=timeout)
        if replica and isinstance(store, NamedPrefixStore):
            # All workers have written theirs by now; a replica dies with any of its processes.
            notes = Notes(store, "processes")
            store.processes |= {worker: json.loads(notes.wait_for(str(worker))) for worker in range(size)}
        if lifelines is not None:
            lifelines.start()

    try:
        world = default_world(device, timedelta(seconds=timeout), check, mesh)
    except PartreduceError:
        if lifelines is not None:
            lifelines.close()
        raise
    return HandshakeResult(world, key, lifelines)


def facts_of(
    schedule: Schedule, flat: FlatModel, optimizer: torch.optim.Optimizer, policies: Policies
) -> dict[str, str]:
    """Return the settings that must be equal on all workers, as short texts by field."""
    from partreduce.topo.document.canonical import schedule_sha256

    layout, rules = flat.details().values()
    return {
        "schedule": f"{schedule.name!r} (sha256 {schedule_sha256(schedule)[:16]})",
        "model": f"{len(layout)} tensors (sha256 {_digest(layout)})",
        "optimizer": type(optimizer).__name__,
        "buffers": policies.buffers.value,
        "buffer rules": f"{len(rules)} buffers (sha256 {_digest(rules)})",
        "optimizer_state": policies.optimizer_state.value,
        "torch version": torch.__version__,
        "partreduce version": partreduce.__version__,
    }


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


_keys = itertools.count(1)  # counts the optimizers of this process


def with_codec(schedule: Schedule, algorithm: AllReduceAlgorithm, codec: str | None, device: torch.device) -> Schedule:
    """Return the schedule with the codec that the user chose; None keeps the schedule's own.

    Raises InputError or MissingDependencyError if codec, `algorithm` and device do not fit together.
    """
    strategy = schedule.strategy
    transport = strategy.transport
    if codec is not None and (chosen := Codec(checked_choice("codec", codec, Codec))) is not transport.codec:
        # Drop settings that the new codec does not have.
        transport = Transport(algorithm=transport.algorithm, codec=chosen, gradient_buckets=transport.gradient_buckets)
    is_coded = transport.codec is not Codec.NONE
    if is_coded and transport.where is CodecScope.ACROSS_NODES and algorithm is not transport.algorithm:
        raise InputError(
            f"algorithm: is {algorithm}; the schedule's codec {transport.codec} is for what crosses the nodes, and "
            f"only {transport.algorithm} has such a stage; leave algorithm out, or give a codec too, which is then for "
            "everything"
        )
    if transport.codec.has_blocks:
        check_stages_over_gloo(f"codec: '{transport.codec}'", device, "use bfloat16 or float16")
    if transport == strategy.transport:
        return schedule
    return Schedule(schedule.name, schedule.cluster, replace(strategy, transport=transport))


NORMALIZES = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Rprop", "Lion", "LAMB", "Lamb")
"""Parts of the names of optimizers whose step size does not depend on the size of the gradient."""


def warn_of_rounded_signs(schedule: Schedule, optimizer: torch.optim.Optimizer) -> None:
    """Warn if int8 or int4 gradients are averaged for an optimizer such as Adam, which normalizes each gradient."""
    strategy, names = schedule.strategy, [base.__name__ for base in type(optimizer).__mro__]
    if not strategy.transport.codec.has_blocks or not strategy.averages_gradients:
        return
    if any(word in name for name in names for word in NORMALIZES):
        warn_user(
            f"partreduce: codec {strategy.transport.codec} with {names[0]}, which divides each gradient by its own "
            "size: what rounding leaves of small ones becomes whole steps, the same on all workers, so weights may "
            "move elsewhere than without a codec (docs/codecs.md); use bfloat16 or float16, or SGD"
        )


def fact_of(transport: Transport) -> str:
    """Describe, for the handshake, a codec, where it applies, and how gradients are sent."""
    if transport.codec is Codec.NONE:
        return f"none, sending {transport.gradient_buckets}"
    text = f"{transport.codec} {transport.where}"
    if transport.codec.has_blocks:
        text += f", block {transport.block}"
        text += ", error feedback" if transport.error_feedback else ", no error feedback"
    return f"{text}, sending {transport.gradient_buckets}"
