"""How often a call turns back between files: the rooms that `plan(job)` passes, counted by a profiler.

    python -m benchmarks.rooms [--effort 2]

Our functions are taken in the order in which each is first called. A *stay* is a run of them in one file (a room), a
*return* a stay in a room that was left before, and a *climb* a step to a package that stands above the one before.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from partreduce import Job, plan
from partreduce.planner.plan import load_searchers
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("topo", "schedulers", "verify", "runtime", "partreduce")
"""From the lowest to the highest."""
HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)


@dataclass(frozen=True, slots=True)
class Way:
    """The functions that were passed, as (file, name), in the order of their first calls."""

    functions: tuple[tuple[str, str], ...]

    @property
    def stays(self) -> list[str]:
        """The file of each stay."""
        files = [file for file, _ in self.functions]
        return files[:1] + [after for before, after in pairwise(files) if after != before]

    @property
    def returns(self) -> int:
        """Stays in a room that was left before."""
        return len(self.stays) - len(set(self.stays))

    @property
    def climbs(self) -> int:
        """Steps from a package to one above it."""
        floors = [FLOORS.index(file.split("/")[0]) for file in self.stays]
        return sum(after > before for before, after in pairwise(floors))


def way_of(call: Callable[[], object]) -> Way:
    """Follow a call. Comprehensions, lambdas and what dataclasses generate are not counted."""
    seen: set[CodeType] = set()
    passed: list[tuple[str, str]] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        path = Path(code.co_filename).resolve()
        if path.suffix == ".py" and path.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            file = path.relative_to(ROOT).as_posix()
            if file.split("/")[0] in FLOORS:
                passed.append((file, code.co_name))

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Way(tuple(passed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=2.0)
    options = parser.parse_args()
    load_searchers()
    job = Job(cluster=replace(Cluster.parse("4x4"), hardware=HARDWARE), effort=options.effort)
    way = way_of(lambda: plan(job))
    stays = Counter(way.stays)
    print(f"{len(way.functions)} functions, {len(way.stays)} stays in {len(stays)} rooms: ", end="")
    print(f"{way.returns} returns, {way.climbs} climbs")
    for file, count in stays.most_common(10):
        print(f"{count:4d}  {file}")


if __name__ == "__main__":
    main()
