"""The lab: four namespaces as nodes, shaped links, 16 workers, every way of synchronizing side by side.

    python -m benchmarks.lab.run                 9 minutes: a thin link, with and without a slow worker
    python -m benchmarks.lab.run --full          every setting, three repetitions
    python -m benchmarks.lab.run --list          what there is

Needs root; says why and ends well where the machine cannot hold it. Results go to benchmarks/results/lab-NAME.*.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks import kit
from benchmarks.lab.setting import settings

if TYPE_CHECKING:
    import argparse

SHORT = ("200mbit homogeneous", "200mbit slow x5")
WORKERS_PER_NODE = 4


def _arguments() -> argparse.Namespace:
    parser = kit.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--settings", help="names separated by commas (see --list)")
    parser.add_argument("--contestants", help="names separated by semicolons (see --list)")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--minutes", type=float, help="no cell begins that would end later; default 9, or 60 if full")
    parser.add_argument("--steps", type=int, help="steps of each worker, instead of the setting's")
    parser.add_argument("--limit", type=float, default=45.0, help="seconds of training in a cell")
    parser.add_argument("--target", type=float, help="training loss; default 0.1 for digits, 2.6 for text")
    parser.add_argument("--name", default="default", help="of the result files")
    parser.add_argument("--no-profile", action="store_true", help="plan with nominal links")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main() -> int:
    chosen = _arguments()
    from benchmarks.lab.contestants import contestants

    known = settings(chosen.nodes * WORKERS_PER_NODE)
    if chosen.list:
        print("settings:", *known, sep="\n  ")
        print("contestants:", *(c.name for c in contestants()), sep="\n  ")
        return 0
    names = chosen.settings.split(",") if chosen.settings else list(known if chosen.full else SHORT)
    competing = {contestant.name for contestant in contestants()}
    requested = chosen.contestants.split(";") if chosen.contestants else []
    for what, given, there in (("setting", names, known), ("contestant", requested, competing)):
        if unknown := [name for name in given if name not in there]:
            print(f"lab: no {what} {unknown[0]!r}; see --list", file=sys.stderr)
            return 2
    from benchmarks.lab.campaign import Cells, Experiment, run
    from benchmarks.lab.crew import NoLabError
    from benchmarks.lab.results import write

    experiments = [
        Experiment(
            setting=known[name],
            shape=(chosen.nodes, WORKERS_PER_NODE),
            contestants=tuple(requested),
            all_contestants=bool(chosen.full or chosen.settings),
            repetitions=chosen.repetitions or (3 if chosen.full else 2),
            steps=chosen.steps,
            limit=chosen.limit,
            target=chosen.target,
        )
        for name in names
    ]

    def write_tables(cells: Cells) -> None:
        if not cells.contents:
            print("lab: nothing was measured", *cells.notes, sep="\n  ")
            return
        write(kit.RESULTS, chosen.name, cells.joined())
        print(f"written: {kit.RESULTS}/lab-{chosen.name}.json, .md", flush=True)

    minutes, profile = chosen.minutes or (60 if chosen.full else 9), not chosen.no_profile
    try:
        run(f"lab-{chosen.name}", experiments, minutes, by="lab.run", profile=profile, write=write_tables)
    except NoLabError as reason:
        print(f"lab: skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
