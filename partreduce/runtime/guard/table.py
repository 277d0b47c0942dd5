"""List all checks for misuse: what each inspects, when it runs, its cost, and its message.

`@check(...)` registers a function that returns None if all is well, and otherwise the values for the message. All
checks of a step run in the first steps; later ones run only those that cost almost nothing or state a reason (`why`),
unless `PARTREDUCE_CHECK=always` is set. `docs/errors.md` is generated from `TABLE`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from partreduce.runtime.environment import CHECK
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError

FIRST_STEPS = 3  # steps in which all checks run, since misuse in a training loop shows from the start

Found: TypeAlias = "Mapping[str, object] | None"
"""Result of a check: None if its docstring's "Whether …" is false, else the values for the names in its message."""


class Moment(StrEnum):
    """A moment of a run at which checks are made, such as before a step; listed in the order of a run."""

    WRAP_OPTIMIZER = "Wrapping: the optimizer"
    WRAP_MODEL = "Wrapping: the model"
    WRAP_RUN = "Wrapping: the run"
    ADD_GROUP = "`add_param_group()`"
    FORWARD = "Forward pass"
    SAVE = "`state_dict()` or pickling of the model"
    BEFORE_STEP = "Before a step"
    SPECIAL_STEP = "Before a step that is skipped or scaled"
    FIRST_AVERAGE = "Before the first average"
    BEFORE_AVERAGING = "Before `step()` averages gradients"
    AFTER_AVERAGING = "Before a step after `average_gradients()`"
    OPTIMIZER_STEP = "Before a step of any torch optimizer"
    ROUND_END = "After the last step of a round"
    MEETING = "Where all meet"

    @property
    def is_in_step(self) -> bool:
        """Whether this moment occurs in each step, so that its checks take time in each step."""
        return self in (Moment.BEFORE_STEP, Moment.BEFORE_AVERAGING, Moment.ROUND_END)


class When(StrEnum):
    """The steps in which a check runs, if it belongs to a moment of a step."""

    ALWAYS = "every step"
    FIRST_STEPS = "first 3 steps"
    FIRST_STEP = "first step"


@dataclass(eq=False)
class Check:
    """A check for misuse: the moments at which it runs, its cost, and its error or, if `warns`, its warning.

    `look` returns None if all is well, else the values for the names in braces in `message`. `looks_at` says in words
    what is checked, and `why` gives the reason for running it in every step.
    """

    name: str
    moments: tuple[Moment, ...]
    when: When
    looks_at: str
    cost: str
    message: str
    look: Callable[..., Found]
    warns: bool
    why: str

    def __call__(self, *facts: Any) -> None:  # noqa: ANN401 - they depend on the moment
        if (found := self.look(*facts)) is None:
            return
        text = self.message.format_map(found)
        if not self.warns:
            raise InputError(text)
        warn_user(f"partreduce{text}")


TABLE: list[Check] = []


def check(
    *moments: Moment, refuses: str = "", warns: str = "", when: When = When.ALWAYS, cost: str = "none", why: str = ""
) -> Callable[[Callable[..., Found]], Check]:
    """Return a decorator that registers a function as a check at `moments`, in the steps `when`.

    If the check finds a fault, it raises InputError with the text `refuses`, or gives the warning `warns`; `cost` and
    `why` are as in `Check`. The function's docstring is the text of the column "what is checked" in `docs/errors.md`.
    """

    def register(look: Callable[..., Found]) -> Check:
        name, looks_at = look.__name__.replace("_", " "), " ".join((look.__doc__ or "").split())
        TABLE.append(Check(name, moments, when, looks_at, cost, refuses or warns, look, bool(warns), why))
        return TABLE[-1]

    return register


def checks_at(moment: Moment) -> tuple[Check, ...]:
    """Return the checks that run at a moment, in the order in which they are defined."""
    return tuple(row for row in TABLE if moment in row.moments)


def run_checks(moment: Moment, *facts: object) -> None:
    """Run all checks of a moment on the arguments `facts`; for a fault they raise InputError or give a warning."""
    for row in checks_at(moment):
        row(*facts)


def checks_always() -> bool:
    """Return whether `PARTREDUCE_CHECK=always` is set: all checks run in every step. InputError for other values."""
    value = os.environ.get(CHECK, "")
    if value not in ("", "always"):
        raise InputError(f"{CHECK}: expected 'always', got {value!r}; set it to that, or unset it")
    return value == "always"
