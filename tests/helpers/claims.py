"""What the checker states of a schedule's document by itself."""

from __future__ import annotations

from helpers.readings import read
from partreduce.verify import checker


def facts_of(raw: dict) -> dict[str, dict | None]:
    """The numbers of every fact, by its name."""
    return {fact.name: fact.numbers for fact in checker.facts(read(raw))}
