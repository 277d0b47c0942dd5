"""Write docs/refusals.md from the table of checks: `python docs/make_refusals.py`; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = Path(__file__).with_name("refusals.md")

HEAD = """# Misuse that is refused or warned of

What would train wrongly in silence is refused, or warned of once, by the checks below. A refusal is an `InputError` of
one line. All checks run when `DistributedOptimizer` is made, where they pass over the model, and in the first {first}
steps. A later step runs only those of *every step*, which cost next to nothing or say why they must run. A buffer that
changes later is named when it is averaged, or where all workers meet: in `mean_model()`, `finish()` and
`save_checkpoint()`. Clipping that begins later than in step {first}, and a DistributedDataParallel around a part of the
model that is called later for the first time, are not noticed.

`PARTREDUCE_CHECK=always` runs all checks in every step. It costs about 4 µs more for each parameter.

Beside these, strategies refuse what does not go with how they average ([strategies](strategies.md)), sending layer by
layer refuses changes of what has left ([whole, or layer by layer](runtime.md#whole-or-layer-by-layer)), and workers
refuse group operations that differ ([errors](runtime.md#errors-and-what-they-mean)). This page is generated from the
table in `partreduce/runtime/guard` by `python docs/make_refusals.py`.
"""
HEADER = "| check | looks at | when | cost | says |\n|---|---|---|---|---|\n"


def page() -> str:
    """The text of the page."""
    from partreduce.runtime.guard import guard  # noqa: F401 - registers all checks
    from partreduce.runtime.guard.table import FIRST_STEPS, TABLE, Moment, When

    parts = [HEAD.format(first=FIRST_STEPS)]
    for moment in Moment:
        if not (rows := [row for row in TABLE if row.moments[0] is moment]):
            continue
        parts.append(f"\n## {moment}\n\n{HEADER}")
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
