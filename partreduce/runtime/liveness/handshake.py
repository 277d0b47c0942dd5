"""Compare the settings that must be equal on all workers, through the store, before any collective.

Bare `torch.distributed` reacts to different schedules, models or dtypes with wrong numbers, an abort or a hang. Here
every worker writes its facts and reads those of all others. If a field differs, all workers raise the same error, which
names the field and a differing rank; after the timeout all name the workers that never arrived.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from partreduce.runtime.transport.rendezvous import hosts_store
from partreduce.runtime.transport.store import Notes, Pauses, deaths_of
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import Deadline
from partreduce.topo.errors import HandshakeError, StoreLostError, UnavailableError

LOOK_SECONDS = 0.2
VOTE_SECONDS = 3.0


def handshake(
    store: Store,
    rank: int,
    size: int,
    facts: Mapping[str, str],
    *,
    details: Mapping[str, Sequence[str]] | None = None,
    key: str = "1",
    timeout: float,
    abort_reason: Callable[[], str | None] = lambda: None,
) -> None:
    """Compare `facts` (field → short text) over all workers through the store; if any differ, all raise HandshakeError.

    Args:
        store: a torch store that all workers reach.
        rank: this worker's rank.
        size: number of workers as this worker knows it; compared as the field `number of workers`.
        facts: values to compare by field; short texts such as hashes.
        details: for a field whose value is a hash, the lines that were hashed; the error names the first difference.
        key: name of the handshake in the run, equal on all workers.
        timeout: seconds to wait for the others; then UnavailableError names those that did not arrive.
        abort_reason: called repeatedly; returns None, or why to stop waiting, which UnavailableError then contains.
    """
    notes = Notes(store, f"handshake/{key}")
    mine = {"number of workers": str(size), **facts}
    deadline = Deadline(timeout)

    def stop_reason(missing: Sequence[int]) -> str | None:
        death = deaths_of(store, missing)
        return abort_reason() if death is None else f"{death} before it arrived"

    try:
        for field, lines in (details or {}).items():
            notes.write(f"{field}/{rank}", json.dumps(list(lines)))
        notes.write(f"facts/{rank}", json.dumps(mine))
        all_facts = _collect(notes, size, deadline, stop_reason)
        problem = compare(all_facts)
        if problem is None:
            return
        field, odd, usual, text = problem
        raise HandshakeError(text + _first_difference(notes, field, odd, usual))
    except StoreLostError as error:
        raise StoreLostError(f"handshake: {error}") from None
    except (UnavailableError, HandshakeError) as error:
        _linger(notes, hosts_store(rank, store), size=size if isinstance(error, HandshakeError) else 0)
        raise
    except RuntimeError as error:
        reason = (str(error).splitlines() or [""])[0][:160]
        raise UnavailableError(f"handshake: the store of the run is gone ({reason})") from None


def compare(all_facts: Mapping[int, Mapping[str, str]]) -> tuple[str, int, int, str] | None:
    """Return the first field that differs as (field, differing rank, majority rank, sentence for an error), or None."""
    fields = list(dict.fromkeys(field for facts in all_facts.values() for field in facts))
    for field in fields:
        values = {rank: facts.get(field, "nothing") for rank, facts in sorted(all_facts.items())}
        counts = Counter(values.values())
        if len(counts) == 1:
            continue
        usual = max(counts, key=lambda value: (counts[value], -min(r for r, v in values.items() if v == value)))
        odd = [rank for rank, value in values.items() if value != usual]
        named = ", ".join(f"rank {rank} has {values[rank]}" for rank in odd[:8])
        more = f" and {len(odd) - 8} more" if len(odd) > 8 else ""
        usual_rank = next(rank for rank, value in values.items() if value == usual)
        return field, odd[0], usual_rank, f"handshake: {field} differs: {named}{more}; the others have {usual}"
    return None


def _collect(
    notes: Notes, size: int, deadline: Deadline, stop_reason: Callable[[Sequence[int]], str | None]
) -> dict[int, dict[str, str]]:
    """Return the facts (text by field) of all `size` workers by rank, read from the handshake's `notes` in the store.

    If facts of two workers differ, it waits at most `VOTE_SECONDS` for the rest, and returns those that have arrived.
    Otherwise it raises UnavailableError at `deadline`, or before if `stop_reason(missing ranks)` is not None.
    """
    missing = list(range(size))
    all_facts: dict[int, dict[str, str]] = {}
    disputed = False
    pauses, look = Pauses(), time.monotonic() + LOOK_SECONDS
    while True:
        is_over = deadline.is_over
        together = notes.read_all([f"facts/{rank}" for rank in missing])
        if together is not None:
            return all_facts | {rank: json.loads(facts) for rank, facts in zip(missing, together, strict=True)}
        if is_over or time.monotonic() > look:  # find out which workers are missing
            look = time.monotonic() + LOOK_SECONDS
            found = {rank: facts for rank in missing if (facts := notes.read(f"facts/{rank}")) is not None}
            all_facts |= {rank: json.loads(facts) for rank, facts in found.items()}
            missing = [rank for rank in missing if rank not in found]
            if not missing:
                return all_facts
            if not disputed and compare(all_facts) is not None:
                # Wait a little for the rest, so that all workers see the same facts and name the same rank.
                deadline = min(deadline, Deadline(VOTE_SECONDS), key=lambda end: end.left)
                disputed = True
            if not disputed and (why := stop_reason(missing)) is not None:
                raise UnavailableError(f"handshake: {why}")
        if is_over:
            if disputed:
                return all_facts
            names = ", ".join(map(str, missing[:16])) + (" …" if len(missing) > 16 else "")
            verb = "rank" if len(missing) == 1 else "ranks"
            raise UnavailableError(
                f"handshake: {verb} {names} of {size} did not arrive within {deadline.seconds:g} s; "
                "was every worker started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE?"
            )
        pauses.sleep()


def _first_difference(notes: Notes, field: str, odd: int, usual: int) -> str:
    """Return where the details of `field` of two ranks first differ, as the end of a sentence; empty if not known."""
    odd_lines, usual_lines = notes.read(f"{field}/{odd}"), notes.read(f"{field}/{usual}")
    if odd_lines is None or usual_lines is None:
        return ""
    theirs, ours = json.loads(odd_lines), json.loads(usual_lines)
    for left, right in zip_longest(theirs, ours, fillvalue="nothing"):
        if left != right:
            return f" (first difference: rank {odd} has {left}, rank {usual} has {right})"
    return ""


def _linger(notes: Notes, hosts: bool, *, size: int) -> None:
    """If this process `hosts` the store, wait up to 2 s until `size` workers have read it; for size 0 wait 0.5 s."""
    deadline, pauses = time.monotonic() + 2, Pauses()
    try:
        gone = notes.count("leaving", 1)
        while hosts and gone < size and time.monotonic() < deadline:
            pauses.sleep()
            gone = notes.count("leaving")
        if hosts and not size:
            time.sleep(0.5)
    except (RuntimeError, StoreLostError):
        return
