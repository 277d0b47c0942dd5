"""Write the tables of checks in docs/errors.md: `python docs/make_errors.py`; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = Path(__file__).with_name("errors.md")
BEGIN = "<!-- written by docs/make_errors.py from partreduce/runtime/guard; do not edit below -->\n"
HEADER = "| check | what is checked | when | cost | says |\n|---|---|---|---|---|\n"


def page() -> str:
    """The text of the page: its head as it stands, then a table for every moment of a run."""
    from partreduce.runtime.guard import guard  # noqa: F401 - registers all checks
    from partreduce.runtime.guard.table import FIRST_STEPS, TABLE, Moment, When

    head = TARGET.read_text(encoding="utf-8").partition(BEGIN)[0]
    parts = [re.sub(r"(?<=first )\d+(?= steps)|(?<=after step )\d+", str(FIRST_STEPS), head), BEGIN]
    for moment in Moment:
        if not (rows := [row for row in TABLE if row.moments[0] is moment]):
            continue
        parts.append(f"\n### {moment}\n\n{HEADER}")
        for row in rows:
            when = row.when.value if moment.is_in_step or row.when is not When.ALWAYS else "each time"
            when += "".join(f", {one[0].lower()}{one[1:]}" for one in row.moments[1:]) + (row.why and f": {row.why}")
            says = re.sub(r"\{(\w+)(!r)?\}", r"‹\1›", row.message).lstrip(":. ")
            verdict = "warned" if row.warns else "refused"
            parts.append(f"| {row.name} | {row.looks_at} | {when} | {row.cost} | {verdict}: {says} |\n")
    return "".join(parts)


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text(encoding="utf-8") == page() else 1
    TARGET.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
