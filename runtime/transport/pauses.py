"""How long to sleep between two looks at a running gloo operation.

Looking is what is left: to be called by the operation's own thread (its future's callbacks), or to wait inside the
library, is to be in C++ frames when the interpreter ends, and an operation that ends in that moment aborts the process.
"""

from __future__ import annotations

SHORTEST, LONGEST = 3e-5, 1e-3
SHARE = 32
"""A wait is noticed to be over at most this part of itself too late."""


def pause_after(waited: float) -> float:
    """Seconds to sleep after `waited` seconds of waiting."""
    return min(LONGEST, max(SHORTEST, waited / SHARE))
