"""The command line of the referee."""

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
    "training": training.Training(),  # the last one, as it starts threads, and others fork
    "failures": training.Failures(),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="referee", description=__doc__)
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
        report(line)
    report(f"{name}: {result.summary}; {time.monotonic() - started:.0f} s")
    return int(result.num_different > 0)


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
