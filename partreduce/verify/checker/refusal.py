"""The two ways in which the checker says no, and the budget of work after which it gives up.

A file that is not what it must be is *unreadable* (exit status 65); an entry that can be read and does not hold is
*refuted* (exit status 1). Both are exceptions, so a claim is proved exactly if its function returns: no function of the
checker answers "true". Most functions may raise a Refusal; "confirm" and "require" in a docstring say what for.
"""

from __future__ import annotations

import json

UNREADABLE, REFUTED = 65, 1

MAX_WORK = 10**10
"""About so many machine operations may be spent on one claim: some minutes of arithmetic."""


class Refusal(Exception):  # noqa: N818 - a refusal is an answer and not an error
    """The checker does not accept a file.

    Attributes:
        sentence: place, value and what was expected, in one line.
        status: 65 if a file cannot be read, 1 if an entry does not hold; the exit status of the program.
    """

    def __init__(self, sentence: str, status: int) -> None:
        self.sentence, self.status = one_line(sentence), status
        super().__init__(self.sentence, status)


def one_line(text: str) -> str:
    """The text as printable ASCII: a sentence quotes strangers, and must not forge a line of the answer."""
    return "".join(character if " " <= character <= "~" else f"\\u{ord(character):04x}" for character in text)


def require(condition: object, place: str, problem: str) -> None:
    """Call a file unreadable unless the condition holds."""
    if not condition:
        raise Refusal(f"{place}: {problem}", UNREADABLE)


def confirm(condition: object, place: str, value: object, expected: object) -> None:
    """Call an entry refuted unless the condition holds."""
    if not condition:
        shown = json.dumps(value)[:120]
        raise Refusal(f"{place} is {shown}; expected {str(expected)[:200]}", REFUTED)


def confirm_equal(place: str, value: object, expected: object) -> None:
    """Call an entry refuted unless it equals what was computed, naming the first place of a list that differs.

    Certificates hold no floats and no `true`, so `==` compares exactly.
    """
    if value == expected:
        return
    if isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        first = next(i for i, pair in enumerate(zip(value, expected, strict=True)) if pair[0] != pair[1])
        confirm_equal(f"{place}[{first}]", value[first], expected[first])
    length = f"a list of {len(expected)}: " if isinstance(expected, list) else ""
    confirm(False, place, value, length + json.dumps(expected)[:160])


class TooLarge(Refusal):
    """A check that would take too long, or too much memory."""


class Work:
    """What one claim has cost so far, counted rather than timed, so that the answer is the same on every machine."""

    def __init__(self, place: str, limit: int = MAX_WORK) -> None:
        self.place, self.limit, self.spent = place, limit, 0

    def spend(self, amount: int) -> None:
        """Add to the cost, *before* the work is done."""
        self.spent += amount
        self.require(self.spent <= self.limit)

    def require(self, condition: object, problem: str = "too large for this check; use another method") -> None:
        """Give up unless the condition holds: for the claim at `place` there is a limit."""
        if not condition:
            raise TooLarge(f"{self.place}: {problem}", UNREADABLE)
