"""The two exceptions by which the checker rejects a file, and the budget of work after which it gives up.

A file that does not have the required form is *unreadable* (exit status 65); an entry that can be read and does not
hold is *refuted* (exit status 1). Both are exceptions, so a claim is proved exactly if its function returns: no
function of the checker returns "true". Most functions may raise a Refusal.
"""

from __future__ import annotations

import json

UNREADABLE, REFUTED = 65, 1

MAX_WORK = 10**10
"""Most machine operations, approximately, for one claim: some minutes of arithmetic."""


class Refusal(Exception):  # noqa: N818 - a refusal is an answer and not an error
    """The exception by which the checker rejects a file.

    Attributes:
        sentence: the place, its value and the expected value, in one line.
        status: 65 if a file cannot be read, 1 if an entry does not hold; the exit status of the program.
    """

    def __init__(self, sentence: str, status: int) -> None:
        self.sentence, self.status = one_line(sentence), status
        super().__init__(self.sentence, status)


def one_line(text: str) -> str:
    """Return a text as printable ASCII in one line, so that quoted content of a file cannot imitate another line."""
    return "".join(character if " " <= character <= "~" else f"\\u{ord(character):04x}" for character in text)


def require(condition: object, place: str, problem: str) -> None:
    """Raise a Refusal of status 65 (unreadable), which says the `problem` at `place`, unless the condition holds."""
    if not condition:
        raise Refusal(f"{place}: {problem}", UNREADABLE)


def confirm(condition: object, place: str, value: object, expected: object) -> None:
    """Raise a Refusal of status 1 (refuted) unless the condition holds; it says place, value and expected value."""
    if not condition:
        shown = json.dumps(value)[:120]
        raise Refusal(f"{place} is {shown}; expected {str(expected)[:200]}", REFUTED)


def confirm_equal(place: str, value: object, expected: object) -> None:
    """Raise a Refusal of status 1 unless a value equals the computed one; names the first item of a list that differs.

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
    """A check would take too much time or memory."""


class Work:
    """The work spent on one claim, counted and not timed, so that the result is the same on every machine."""

    def __init__(self, place: str, limit: int = MAX_WORK) -> None:
        self.place, self.limit, self.spent = place, limit, 0

    def spend(self, amount: int) -> None:
        """Add to the work *before* it is done; raise TooLarge beyond the limit."""
        self.spent += amount
        self.require(self.spent <= self.limit)

    def require(self, condition: object, problem: str = "too large for this check; use another method") -> None:
        """Raise TooLarge, which says the `problem` with the claim at `place`, unless the condition holds."""
        if not condition:
            raise TooLarge(f"{self.place}: {problem}", UNREADABLE)
