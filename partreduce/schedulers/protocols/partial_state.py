"""Define the state, events and messages of one worker of a partial collective (`partial.py` has the transitions)."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTING, CALLED, MEETING = range(3)
"""What the training does: it computes, has called and waits for a result, or synchronizes its model."""
GOES_ON = -2
"""In place of the last round that a worker needs, while no worker has heard that it has ended."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Message: round `round` may start."""

    round: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Message (quorum of a number): the sender counts for round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Here:
    """Message (`synchronize_every`): the sender's model waits to be averaged at the beginning of round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Message: the sender has no more data; `round` is the last one that it has come for (−1: for none)."""

    round: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker brings to the sum of a round: the numbers of its gradients.

    A driver with a collective starts that when shares are to be sent, and hands in what it says of the others. Only who
    looks on asks for the rest: `oldest` is how many rounds the oldest gradient had taken when its computing began (−1:
    there is none), `ended` whether the worker has ended.
    """

    round: int
    gradients: tuple[int, ...]
    oldest: int = -1
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Event: a gradient is computed and handed over."""


@dataclass(frozen=True, slots=True)
class End:
    """Event: the worker has no more data; from now on it only takes results."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Event: the thread enters its next round with what is in the send buffer. Grace is only when this happens."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Event: the sum of the round is there."""


@dataclass(frozen=True, slots=True)
class Take:
    """Event: the training takes results and applies them."""


@dataclass(frozen=True, slots=True)
class Result:
    """The sum of a round: how many gradients of each worker are in it."""

    round: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartialState:
    """One worker. Its gradients have numbers, by which it can be told where each of them is.

    Training: `calls` made, `version` rounds taken, `stage`, whether it is `resting` for ever; `buffer` holds what no
    round has, `oldest` is the version with which the oldest of it was begun (−1: none). Thread: rounds `entered`,
    rounds `done`, `results` that wait for the training, `shares[w]` of worker w in rounds that are not done, `counted`
    own calls in the rounds done.

    It knows 1 + the last round for which worker w has come (`arrived[w]`), the last round that w needs (`lasts[w]`),
    and how many rounds may start (`activated`). `synchronized` is the round up to which models are, `here[w]` the one
    for which worker w waits.
    """

    calls: int = 0
    version: int = 0
    stage: int = COMPUTING
    resting: bool = False
    buffer: tuple[int, ...] = ()
    oldest: int = -1
    entered: int = 0
    done: int = 0
    results: tuple[Result, ...] = ()
    shares: tuple[tuple[Share, ...], ...] = ()
    counted: int = 0
    arrived: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    activated: int = 0
    synchronized: int = 0
    here: tuple[int, ...] = ()

    @property
    def is_running(self) -> bool:
        return self.entered > self.done

    @property
    def last(self) -> int | None:
        """The last round of all; None while some worker continues, as far as this one knows."""
        return None if GOES_ON in self.lasts else max(self.lasts)
