"""The certificate: the proved claims of one schedule, in the closed format that `verify/checker.py` reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verify.base import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from topo.schedule import Schedule
    from verify.base import Claim

FORMAT = "preduce.certificate"
VERSION = 1


def certificate_of(schedule: Schedule, claims: Iterable[Claim]) -> dict[str, Any]:
    """The entries of all proved claims under the schedule's canonical SHA-256."""
    from topo.document import schedule_sha256

    return {
        "format": FORMAT,
        "version": VERSION,
        "schedule_sha256": schedule_sha256(schedule),
        "num_workers": schedule.num_workers,
        "period": schedule.period,
        "claims": [dict(c.entry) for c in claims if c.status is Status.PROVED and c.entry is not None],
    }


def certificate_bytes(certificate: Mapping[str, Any]) -> bytes:
    """The canonical text: sorted keys, no spaces, one final newline."""
    return json.dumps(certificate, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
