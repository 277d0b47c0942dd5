"""What the checker says of one claim by itself."""

from __future__ import annotations

import json

from partreduce.verify import checker


def said(raw: dict, entry: dict) -> str | None:
    """What the checker says against one entry of a certificate of a schedule's document, None if it holds."""
    try:
        checker.CLAIMS[entry["claim"]].check(checker.read_schedule(json.loads(json.dumps(raw))), entry, "here")
    except checker.Refusal as refusal:
        return refusal.sentence
    return None
