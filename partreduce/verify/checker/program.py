"""The command line of the checker: one line for every fact and every claim that holds, or one that states the error.

Exit status: 0 if every claim holds, 1 if an entry does not hold, 65 if a file cannot be read or the output not written.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence

from .claims import AFTER_FAILURE_TOO, ASSUMED, check, facts
from .refusal import REFUTED, UNREADABLE, Refusal, one_line, require
from .schedule import Numbers, Schedule, read_schedule
from .strict_json import MAX_BYTES, read_file

USAGE = "python -I checker [--max-bytes N] certificate.json schedule.json"
MAX_SHOWN = 200


def main(arguments: Sequence[str]) -> int:
    """Run the command line: confirm the certificate in one file for the schedule in another.

    Args:
        arguments: those of USAGE, without the program's name.

    Returns:
        The exit status; no file and no argument makes it raise an exception.
    """
    try:
        return _main(arguments)
    except OSError as error:  # of standard output: who reads it may have seen enough, or its disk is full
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"the answer cannot be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter writes as it ends
        return UNREADABLE


def _main(arguments: Sequence[str]) -> int:
    if list(arguments) in (["--help"], ["-h"]):
        print(f"usage: {USAGE}", flush=True)  # noqa: T201 - this is a program
        return 0
    try:
        for line in _answers(arguments):
            print(line, flush=True)  # noqa: T201 - this is a program
    except Refusal as refusal:
        verdict = "refuted" if refusal.status == REFUTED else "unreadable"
        print(f"{verdict}: {refusal.sentence}", flush=True)  # noqa: T201
        return refusal.status
    except Exception as error:  # whatever a stranger's file holds, the answer is one sentence
        if isinstance(error, OSError) and error.filename is None:
            raise
        what = (
            f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        )
        print(one_line(f"unreadable: {what}"[:300]), flush=True)  # noqa: T201
        return UNREADABLE
    return 0


def _answers(arguments: Sequence[str]) -> Iterator[str]:
    """Yield one line for every confirmed claim, then for every fact, then for every assumption."""
    limit, paths = _command_line(arguments)
    certificate = read_file(paths[0], is_certificate=True, limit=limit)
    document = read_file(paths[1], is_certificate=False, limit=limit)
    is_second = isinstance(document, dict) and document.get("format") == "partreduce.certificate"
    require(not is_second, paths[1], f"is a certificate, which comes first: {USAGE}")
    schedule = read_schedule(document)
    assumed = []
    for claim in check(certificate, schedule):
        assumed.append(claim)
        yield f"{claim}: proved{_until(schedule, claim)}"
    for fact in facts(schedule):
        assumed += [] if fact.follows else [fact.name]
        kind = "follows from the protocol's rules" if fact.follows else "fact"
        yield one_line(f"{fact.name}: {kind}{_until(schedule, fact.name)}{_format_numbers(fact.numbers)}")
    yield from (f"assumed for {name}: {ASSUMED[name]}" for name in assumed if name in ASSUMED)


def _until(schedule: Schedule, name: str) -> str:
    return " before a failure" if schedule.failure_plan and name not in AFTER_FAILURE_TOO else ""


def _format_numbers(numbers: Numbers | None) -> str:
    if numbers is None:
        return ", but its numbers take too long to compute"
    shown = (f"{name} {json.dumps(value)[:MAX_SHOWN]}" for name, value in numbers.items())
    return "".join(f"{', ' if number else ': '}{part}" for number, part in enumerate(shown))


def _command_line(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Return the limit on the size of a file, in bytes, and the two paths."""
    limit, paths = MAX_BYTES, list(arguments)
    if len(paths) == 4 and paths[0] == "--max-bytes" and re.fullmatch("[0-9]{1,15}", paths[1]):
        limit, paths = int(paths[1]), paths[2:]
    require(len(paths) == 2 and not paths[0].startswith("--"), "usage", USAGE)
    return limit, paths
