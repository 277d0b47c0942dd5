"""The codec that a run uses: the schedule's, or the one that the user asks for instead."""

from __future__ import annotations

from dataclasses import replace

import torch

from partreduce.runtime.transport.forms import refuse_stages_over_gloo
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, CodecScope, Form, How


def with_codec(schedule: Schedule, form: Form, codec: str | None, device: torch.device) -> Schedule:
    """The schedule as it is run: with the codec that the user asks for, if there is one.

    Args:
        schedule: as it was read.
        form: of the groups that will be made.
        codec: what the user asks for; None for the schedule's own.
        device: of the parameters.

    Raises:
        InputError: no such codec, or a strategy that may not round what it sends.
        MissingFeatureError: sums of several stages of CUDA tensors that go over gloo.
    """
    strategy = schedule.strategy
    how = strategy.how
    if codec is not None:
        try:
            chosen = Codec(codec)
        except ValueError:
            raise InputError(f"codec: {codec!r} is not one of {', '.join(one.value for one in Codec)}") from None
        how = _changed(how, chosen)
    if how.codec is Codec.NONE:
        return schedule if how == strategy.how else _with_how(schedule, how)
    if how.where is CodecScope.ACROSS_NODES and form is not how.form:
        raise InputError(
            f"form: is {form}; the schedule's codec {how.codec} is for what crosses the nodes, and only {how.form} has "
            "such a stage; leave form out, or give a codec too, which is then for everything"
        )
    if how.codec.has_blocks:
        refuse_stages_over_gloo(f"codec: '{how.codec}'", device, "use bfloat16 or float16")
    return schedule if how == strategy.how else _with_how(schedule, how)


NORMALISES = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Rprop", "Lion", "LAMB", "Lamb")
"""What is in the names of optimizers that take steps of one size, however small a gradient is."""


def warn_of_rounded_signs(schedule: Schedule, optimizer: torch.optim.Optimizer) -> None:
    """Say what few bits cost an optimizer that divides each gradient by its own size."""
    strategy, names = schedule.strategy, [base.__name__ for base in type(optimizer).__mro__]
    if not strategy.how.codec.has_blocks or not strategy.averages_gradients:
        return
    if any(word in name for name in names for word in NORMALISES):
        warn_user(
            f"partreduce: codec {strategy.how.codec} with {names[0]}, which divides each gradient by its own size: "
            "what rounding leaves of small ones becomes whole steps, the same on all workers, so weights may move "
            "elsewhere than without a codec (docs/codecs.md); use bfloat16 or float16, or SGD"
        )


def _changed(how: How, codec: Codec) -> How:
    """The same with another codec: settings that it does not have go."""
    if codec is how.codec:
        return how
    return How(form=how.form, codec=codec, sending=how.sending)


def _with_how(schedule: Schedule, how: How) -> Schedule:
    """The schedule with another way for its payload; refused as in a file where the strategy has none."""
    return Schedule(schedule.name, schedule.cluster, replace(schedule.strategy, how=how))


def fact_of(how: How) -> str:
    """What all workers must have in common about their payload, beside its form, as a short text."""
    if how.codec is Codec.NONE:
        return f"none, sending {how.sending}"
    text = f"{how.codec} {how.where}"
    if how.codec.has_blocks:
        text += f", block {how.block}"
        text += ", error feedback" if how.error_feedback else ", no error feedback"
    return f"{text}, sending {how.sending}"
