"""How a schedule runs, in a few words, for tables and titles."""

from __future__ import annotations

from partreduce.topo.strategies.axes import Codec, CodecScope, Form, How, Sending, When
from partreduce.topo.strategies.base import Pace
from partreduce.topo.strategies.routes import ALIKE, Routes


def runs(pace: Pace, when: When, how: How, form: Form | None = None, *, what: Routes = ALIKE) -> str:
    """What differs from float32 sums around rings, in one piece, in lockstep, after every step; may be empty."""
    words = [] if pace == 1 else [f"every {pace}" if isinstance(pace, int) else "paced"]
    words += [when.in_words] if when.in_words else []
    if (form or how.form) is not Form.RING:
        words.append(str(form or how.form))
    if how.codec is not Codec.NONE:
        words.append(str(how.codec) + (" across" if how.where is CodecScope.ACROSS_NODES else ""))
    if how.sending is Sending.LAYERS:
        words.append("layers")
    words += [part for part in (what.in_words, what.outer.in_words, what.turns_in_words) if part]
    return " ".join(words)
