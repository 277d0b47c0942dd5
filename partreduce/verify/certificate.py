"""Write the certificate: the proved claims of one schedule, in the closed format that `verify/checker/` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, Status

FORMAT = "partreduce.certificate"
VERSION = 1


def certificate_of(read: Any, claims: Iterable[Claim]) -> dict[str, Any]:  # noqa: ANN401 - the checker's own schedule
    """Return the certificate of `read`, the schedule as the checker reads it: its hash, and proved claims' entries."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "schedule_sha256": read.sha256,
        "num_workers": read.num_workers,
        "period": read.period,
        "claims": [dict(c.entry) for c in claims if c.status is Status.PROVED and c.entry is not None],
    }


def confirm(schedule: Schedule) -> list[str]:
    """Run the checker on the certificate in a schedule's file and return the names of the claims that it confirmed.

    Raises:
        RefutedError: there is no certificate, it belongs to another schedule, or the checker rejects an entry.
    """
    from partreduce.topo.document.schedule import dump_schedule
    from partreduce.topo.errors import RefutedError
    from partreduce.verify import checker

    if schedule.certificate is None:
        raise RefutedError(f"schedule {schedule.name!r}: carries no certificate; write one with partreduce verify")
    # A round trip through JSON: the checker reads documents, and may canonicalize their order in place.
    document, certificate = (
        json.loads(json.dumps(part)) for part in (dump_schedule(schedule), dict(schedule.certificate))
    )
    try:
        return list(checker.check(certificate, checker.read_schedule(document)))
    except checker.Refusal as refusal:
        place = "" if refusal.sentence.startswith("certificate: ") else "certificate: "
        raise RefutedError(
            f'schedule {schedule.name!r}: {place}{refusal.sentence}; take the member "certificate" out of the '
            "file, or have partreduce design write it again"
        ) from None


def certificate_bytes(certificate: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON text of a certificate: sorted keys, no spaces, one final newline."""
    return json.dumps(certificate, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
