"""What asks a user's function for groups; as a program, it does that in a process of its own, for `function_process`.

The program is started by its path: as a module of `partreduce.verify` it would import all proofs first, which takes
three times as long as what it needs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group

PhaseFunction = Callable[[int, int, Cluster], Group | Iterable[int] | None]

MEMORY_BYTES = 4 * 2**30
OUTPUT_BYTES = 16 * 2**20


def ask(function: PhaseFunction, worker: int, step: int, cluster: Cluster) -> Group | None:
    """What the function answers, as a Group with ascending members.

    Raises:
        InputError: it fails, ends the process, or answers with something else than ranks.
    """
    place = f"group_of(worker={worker}, step={step})"
    try:
        answer = function(worker, step, cluster)
        if answer is None or isinstance(answer, Group):
            group = answer and Group(tuple(sorted(answer.members)), answer.relax)
        else:
            group = Group(tuple(sorted(answer)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too; it becomes a sentence
        raise InputError(f"{place}: raised {one_line(error)}") from None
    if group is None or group.members == (worker,) or not group.members:
        return None
    if any(type(member) is not int for member in group.members):
        shown = " ".join(repr(group.members).split())[:200]
        raise InputError(f"{place}: answered {shown}; a group holds ranks as plain integers")
    if type(group.relax) is not Fraction:
        raise InputError(f"{place}: answered relax {group.relax!r:.100}; it is a Fraction")
    if (
        len(set(group.members)) != len(group.members)
        or not 0 <= group.members[0] <= group.members[-1] < cluster.num_workers
    ):
        raise InputError(f"{place}: answered {group}; a group holds ranks 0..{cluster.num_workers - 1}, each once")
    return group


def one_line(error: BaseException) -> str:
    """The kind and the text of an exception in one line of reasonable length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": ")


def place_of_function(place: str) -> tuple[Path, str]:
    """File and name of `file.py:name`.

    Raises:
        InputError: it is not of that form, or there is no such file.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file)
    if not colon or not name.isidentifier() or not path.is_file():
        raise InputError(f"{place!r}: not found; name a function as FILE.py:NAME")
    return path, name


def load_function(place: str) -> PhaseFunction:
    """The function named by `file.py:name`. The file is executed *here*, so it must be trusted like any script.

    Raises:
        InputError: no such file or function, or a file that fails when executed.
    """
    path, name = place_of_function(place)
    spec = importlib.util.spec_from_file_location(f"partreduce_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too; it becomes a sentence
        raise InputError(f"{path}: raised {one_line(error)} when executed") from None
    function: PhaseFunction | None = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{path}: has no function {name!r}")
    return function


def main() -> None:
    """The child: answer what is asked, then end at once, whatever threads or exit handlers the function left."""
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    with os.fdopen(os.dup(0), "rb") as questions, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        request = pickle.load(questions)  # noqa: S301 - from the parent
        try:
            _limit(request["seconds"])
            function = load_function(request["place"])
            for line in questions:
                _write(pipe, _answered(function, request["cluster"], json.loads(line)))
        except InputError as error:
            _write(pipe, {"error": str(error)})
        except BaseException as error:  # noqa: BLE001 - whatever else happens becomes a sentence too
            _write(pipe, {"error": f"{request['place']}: {one_line(error)}"})
        os._exit(0)


def _limit(seconds: float) -> None:
    """Bound processor time, memory, output and core files, as far as the system does that."""
    import resource

    limits = {
        resource.RLIMIT_CPU: int(seconds) + 5,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: OUTPUT_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        try:
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        except (ValueError, OSError):
            continue


def _answered(function: PhaseFunction, cluster: Cluster, question: dict[str, Any]) -> dict[str, Any]:
    """The distinct groups of one step, and which worker is in which."""
    workers = list(range(cluster.num_workers))
    if question["shuffled"]:
        random.Random(question["id"]).shuffle(workers)
    number: dict[Group, int] = {}
    of = [-1] * cluster.num_workers
    for worker in workers:
        group = ask(function, worker, question["step"], cluster)
        if group is not None:
            of[worker] = number.setdefault(group, len(number))
    return {"id": question["id"], "groups": [[group.members, str(group.relax)] for group in number], "of": of}


def _write(pipe: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


if __name__ == "__main__":
    main()
