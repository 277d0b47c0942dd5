"""Write docs/conformance.md from the suite: `python docs/make_conformance.py`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

TARGET = Path(__file__).with_name("conformance.md")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

HEAD = """# Conformance

Training loops under every strategy kind, compared with plain torch. `tests/runtime/conformance` runs each cell on three
workers against plain torch models that exchange vectors over a barrier, and compares every worker's parameters after
each step and at the end (float64, relative 1e-9). `python docs/make_conformance.py` writes this page from the suite.

* **equal**: the kind's definition holds: training on all batches (DDP) where gradients are averaged, else each worker's
  own training with the averages of its rounds.
* **refused**: an `InputError` of one line, before anything changes.
* **warned**: one Python warning; numbers differ from DDP's, models differ, or something was dropped.

Asynchronous servers and pairs take turns here. Iteration gaps use tokens, and a quorum waits for all gradients.

"""


def named(kinds: list[str], gradients: list[str], parameters: list[str]) -> str:
    """Which kinds, in few words: those that average gradients, or parameters, go by that name if all are there."""
    if set(kinds) == {*gradients, *parameters}:
        return "all"
    parts = []
    for group, name in ((gradients, "gradient kinds"), (parameters, "parameter kinds")):
        here = [kind for kind in kinds if kind in group]
        others = [kind for kind in group if kind not in here]
        if len(here) > len(others):
            parts.append(f"{name} (not {'; '.join(others)})" if others else name)
        else:
            parts += here
    return "; ".join(parts)


COLUMNS = """## Kinds

What each kind supports beyond plain training. A number means that it is refused, for the reason below the table.

* **codec**: int8 on the wire; **int4** with error feedback, only where every round is of all workers and none is late.
* **delay**: averages applied one round late. `sync` has one value, so a delay replaces a pipeline, a quorum or an
  iteration gap: "as …" names the row that the kind becomes. Delayed asynchronous servers and pairs are tested in
  `tests/runtime/strategies`, not by this suite.
* **failure**: the schedule can have a `failure_plan`, so that survivors continue; others restart.
  The runs are in `tests/runtime/processes/test_elastic_kinds.py`, which lists other settings than this table.
* **resume**: a checkpoint continues with the numbers of an uninterrupted run.
* **device**: the numbers of the CPU on simulated devices, whatever operation is delayed (`tests/runtime/devices`).
* **sharded**: replicas sharded by `fully_shard` have the losses of whole workers.

"""


def kinds_table() -> str:
    """The table of kinds and variants, with the reasons of those that are refused."""
    from helpers.conformance.idioms import IDIOMS
    from helpers.conformance.kinds import KINDS
    from helpers.conformance.variants import FREE, REFUSED, change
    from helpers.device.cells import CELLS

    reasons: dict[str, int] = {}
    assert {cell.kind for cell in CELLS} == set(KINDS), "every kind runs on simulated devices"
    names = {kind.strategy: name for name, kind in KINDS.items()}
    lines = ["| kind | codec | delay | failure | resume | device | sharded |", "|---|---|---|---|---|---|---|"]
    for kind in KINDS:
        whys = {name: REFUSED[name].get(kind, "") for name in ("codec", "delay", "failure")}
        whys |= {"resume": IDIOMS["checkpoint"].outcome(kind).why, "device": ""}
        whys["sharded"] = REFUSED["sharded"].get(kind, "")
        shown = dict.fromkeys(whys, "yes") | {"codec": "int8" if kind in REFUSED["feedback"] else "int8, int4"}
        if not whys["delay"]:
            becomes = names.get(change("delay", kind).strategy, kind)
            shown["delay"] = "elsewhere" if kind in FREE else "yes" if becomes == kind else f"as {becomes}"
        cells = [str(reasons.setdefault(why, len(reasons) + 1)) if why else shown[name] for name, why in whys.items()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    listed = "\n".join(f"{number}. {why}" for why, number in reasons.items())
    return COLUMNS + "\n".join(lines) + f"\n\n{listed}\n"


def text() -> str:
    """The page: kinds and variants, a row for each idiom that some kind refuses or warns of, a list of the others."""
    from helpers.conformance.idioms import IDIOMS
    from helpers.conformance.kinds import KINDS

    gradients = [name for name, kind in KINDS.items() if kind.gradients]
    parameters = [name for name in KINDS if name not in gradients]
    lines, equal = ["| idiom | outcome | under | why |", "|---|---|---|---|"], []
    for name, idiom in IDIOMS.items():
        found: dict[tuple[str, str], list[str]] = {}
        for kind in KINDS:
            found.setdefault((idiom.outcome(kind).verdict, idiom.outcome(kind).why), []).append(kind)
        odd = {outcome: kinds for outcome, kinds in found.items() if outcome[0] != "equal"}
        if not odd:
            equal.append(f"* **{name}**: {idiom.says}.")
        lines += [
            f"| **{name}**: {idiom.says} | {verdict} | {named(kinds, gradients, parameters)} | {why} |"
            for (verdict, why), kinds in odd.items()
        ]
    groups = f"* **gradient kinds**: {'; '.join(gradients)}.\n* **parameter kinds**: {'; '.join(parameters)}.\n"
    table = "\n".join(lines)
    return (
        f"{HEAD}{groups}\n{kinds_table()}\n## Refused or warned\n\n{table}\n\n## Equal under every kind\n\n"
        + "\n".join(equal)
        + "\n"
    )


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text() == text() else 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
