"""What one event waits for: the one form that every rule of every setting has.

Three events repeat at every worker: it *enters* a step, *sends* its update, *reduces*. Write N(x) for how often event x
has happened, and n for the number of workers; event v is worker v's enter, n + v its send, 2n + v its reduce. A need of
x says

    N(x) ≤ the (spare+1)-th smallest of N(y) + w over the sources (y, w),

that is: all sources but `spare` of them must have happened often enough. With spare = 0 throughout this is a marked
graph (an arc y → x with w tokens); backup workers are the needs with spare > 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """Event `event` waits for all but `spare` of `sources`, pairs of an event and its number of tokens."""

    event: int
    sources: tuple[tuple[int, int], ...]
    spare: int = 0
