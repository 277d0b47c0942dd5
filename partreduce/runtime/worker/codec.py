"""Choose the codec of a run: the schedule's, or the one that the user asks for instead."""

from __future__ import annotations

from dataclasses import replace

import torch

from partreduce.runtime.transport.worlds import check_stages_over_gloo
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, Transport


def with_codec(schedule: Schedule, algorithm: AllReduceAlgorithm, codec: str | None, device: torch.device) -> Schedule:
    """The schedule as it is run: with the codec that the user asks for, if there is one.

    Args:
        schedule: as it was read.
        algorithm: of the groups that will be made.
        codec: what the user asks for; None for the schedule's own.
        device: of the parameters.
    """
    strategy = schedule.strategy
    transport = strategy.transport
    if codec is not None:
        try:
            chosen = Codec(codec)
        except ValueError:
            raise InputError(f"codec: {codec!r} is not one of {', '.join(one.value for one in Codec)}") from None
        transport = _with_codec(transport, chosen)
    if transport.codec is Codec.NONE:
        return schedule if transport == strategy.transport else _with_transport(schedule, transport)
    if transport.where is CodecScope.ACROSS_NODES and algorithm is not transport.algorithm:
        raise InputError(
            f"algorithm: is {algorithm}; the schedule's codec {transport.codec} is for what crosses the nodes, and "
            f"only {transport.algorithm} has such a stage; leave algorithm out, or give a codec too, which is then for "
            "everything"
        )
    if transport.codec.has_blocks:
        check_stages_over_gloo(f"codec: '{transport.codec}'", device, "use bfloat16 or float16")
    return schedule if transport == strategy.transport else _with_transport(schedule, transport)


NORMALIZES = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Rprop", "Lion", "LAMB", "Lamb")
"""What is in the names of optimizers that take steps of one size, however small a gradient is."""


def warn_of_rounded_signs(schedule: Schedule, optimizer: torch.optim.Optimizer) -> None:
    """Say what few bits cost an optimizer that divides each gradient by its own size."""
    strategy, names = schedule.strategy, [base.__name__ for base in type(optimizer).__mro__]
    if not strategy.transport.codec.has_blocks or not strategy.averages_gradients:
        return
    if any(word in name for name in names for word in NORMALIZES):
        warn_user(
            f"partreduce: codec {strategy.transport.codec} with {names[0]}, which divides each gradient by its own "
            "size: what rounding leaves of small ones becomes whole steps, the same on all workers, so weights may "
            "move elsewhere than without a codec (docs/codecs.md); use bfloat16 or float16, or SGD"
        )


def _with_codec(transport: Transport, codec: Codec) -> Transport:
    """The same with another codec: settings that it does not have go."""
    if codec is transport.codec:
        return transport
    return Transport(algorithm=transport.algorithm, codec=codec, gradient_buckets=transport.gradient_buckets)


def _with_transport(schedule: Schedule, transport: Transport) -> Schedule:
    """The schedule with another way for its payload; refused as in a file where the strategy has none."""
    return Schedule(schedule.name, schedule.cluster, replace(schedule.strategy, transport=transport))


def fact_of(transport: Transport) -> str:
    """What all workers must have in common about how the payload travels, except the algorithm, as a short text."""
    if transport.codec is Codec.NONE:
        return f"none, sending {transport.gradient_buckets}"
    text = f"{transport.codec} {transport.where}"
    if transport.codec.has_blocks:
        text += f", block {transport.block}"
        text += ", error feedback" if transport.error_feedback else ", no error feedback"
    return f"{text}, sending {transport.gradient_buckets}"
