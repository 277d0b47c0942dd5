"""The canonical form of a schedule and its SHA-256, which workers compare at start-up and certificates name.

The canonical form is UTF-8 JSON with sorted keys, no spaces and no `certificate`; members that equal their default are
absent; a repeated phase is written out each time; groups are ordered by their first member; ranks, blocks, local ranks
and digits ascend; a steps_per_round that is the same for all workers is one number; fractions are in lowest terms. So
the hash depends neither on the order of groups in a file nor on its layout, and a member that a later version adds with
a default changes no old hash.

The failure plan is part of the hash: survivors with different plans would average in different groups.
"""

from __future__ import annotations

import hashlib
import json

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.document.phases import phase_text
from partreduce.topo.document.schedule import encodable
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule


def canonical_bytes(schedule: Schedule) -> bytes:
    """Return the canonical form of a schedule as UTF-8 JSON. O(size of its file)."""
    document = encodable(schedule)
    document.pop("certificate", None)
    return _text(document).encode()


@check_arguments
def schedule_sha256(schedule: Schedule) -> str:
    """Compute the SHA-256 of a schedule's canonical form.

    Args:
        schedule: any Schedule.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(canonical_bytes(schedule)).hexdigest()


def _text(value: object) -> str:
    if isinstance(value, Phase):
        return phase_text(value, spaced=False)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list) and value and isinstance(value[0], Phase):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
