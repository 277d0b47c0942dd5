"""The referee: what the tool does, recorded as small files, and compared with what a later checkout does.

    python -m benchmarks.referee compare                    # all parts, in this checkout
    python -m benchmarks.referee compare --part metrics     # one of them; --only PATTERN picks artefacts by name
    python -m benchmarks.referee record --part metrics      # write the records again

Every artefact is an input and what comes of it. `compare` takes the inputs from the records, so that both sides see the
same ones, and translates inputs and outcomes by the tables of `words.py`: a renamed key or word is no difference. What
changed on purpose stands in `explained.toml`, with its reason. The exit code is 1 if anything else differs.

To record what another checkout does, let its package come first and this one's folder be found:

    PYTHONPATH=OTHER:THIS/benchmarks OTHER/.venv/bin/python -P -m referee record

All uses of partreduce stand in `tool.py`, `inputs.py` and `schedules.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch

from . import catalogue, codecs, mistakes, plans, timelines, training
from .compare import Tables, compare
from .records import load, rounded, save

PARTS = {
    "certificates": catalogue.Certificates(),
    "metrics": catalogue.Metrics(),
    "timelines": timelines.Timelines(),
    "codecs": codecs.Codecs(),
    "mistakes": mistakes.Mistakes(),
    "plans": plans.Plans(),
    "failures": training.Failures(),
    "training": training.Training(),  # the last one, as it starts threads, and others fork
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="referee", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--only", default="*", help="only artefacts whose name matches this pattern")
    options = parser.parse_args()
    act = record if options.action == "record" else check
    return max([act(part, options.only) for part in options.part or PARTS], default=0)


def record(name: str, only: str) -> int:
    """Write what this checkout does, the artefacts that the pattern leaves out as they are."""
    started, part = time.monotonic(), PARTS[name]
    kept = {} if only == "*" else load(name)
    inputs = {key: given for key, given in part.inputs().items() if fnmatch(key, only)}
    made = {key: {"input": given, "outcome": rounded(part.observe(given))} for key, given in inputs.items()}
    size = save(name, kept | made)
    report(f"{name}: recorded {len(made)} artefacts, {size} bytes, {time.monotonic() - started:.0f} s")
    return 0


def check(name: str, only: str) -> int:
    """Say how this checkout differs from the record."""
    started = time.monotonic()
    recorded = {key: artefact for key, artefact in load(name).items() if fnmatch(key, only)}
    result = compare(name, recorded, PARTS[name].observe, Tables.read())
    for line in result.lines:
        report(f"{name}: {line}")
    report(f"{name}: {result.summary}; {time.monotonic() - started:.0f} s")
    return int(result.num_different > 0)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
