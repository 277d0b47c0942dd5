"""Which kind is recommended where, over imbalance and bandwidth: a picture, a cell of which names also the second best.

    python -m benchmarks.planner.kinds [-o docs/pictures/kinds.svg]

Eight workers on two nodes, 100 MB, 50 ms a step, as one worker computes longer and NICs get thinner, for each
optimizer. A cell's second best is the option of another kind with the least worst-case regret, and how many times as
long it takes there; kinds that decide while the job runs are run in virtual time. Beside the picture stands what was
planned, benchmarks/results/kinds.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import compact, kit
from partreduce import PlanRequest
from partreduce.planner.delay import Delay
from partreduce.planner.gain import contenders, regrets
from partreduce.planner.plan import plan
from partreduce.planner.recommend import permitted
from partreduce.planner.steps_model import Optimizer
from partreduce.report.axes import quiet
from partreduce.report.palette import INK, OKABE_ITO
from partreduce.report.picture import new_figure
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

if TYPE_CHECKING:
    from partreduce.types import CandidateSchedule

PICTURE = Path(__file__).resolve().parents[2] / "docs/pictures/kinds.svg"
SLOWER = (1.0, 2.0, 4.0)
BANDWIDTHS = (1e8, 1e9, 1e10)
EFFORT = 1.0
COLORS = {
    "All-Reduce": OKABE_ITO[5],
    "All-Reduce, rarely": OKABE_ITO[1],
    "groups": OKABE_ITO[2],
    "late": OKABE_ITO[6],
    "outer steps": OKABE_ITO[4],
    "while it runs": OKABE_ITO[3],
}
"""By kind: sums of all in every step or every few, groups from a file, averages or gradients that come late, outer
steps, and what a protocol decides (gaps, quorums, groups on request, pairs, servers)."""


def kind_of(option: CandidateSchedule) -> str:
    if option.facts is not None:
        return "outer steps" if option.facts.by_task else "while it runs"
    if option.delay is not Delay.SYNCHRONOUS:
        return "late"
    if option.schedule.strategy.averages_everyone and isinstance(option.steps_per_round, int):
        return "All-Reduce" if option.steps_per_round == 1 else "All-Reduce, rarely"
    return "groups"


def cell(optimizer: Optimizer, slower: float, bandwidth: float) -> dict[str, Any]:
    """What is recommended, and the best of all other kinds."""
    slowdown = ((0, slower),) if slower > 1 else ()
    nic = Link.of_bandwidth(bandwidth, 1e-5)
    hardware = Hardware(
        inside=Link.of_bandwidth(10e9, 1e-5), nic=nic, model_bytes=100_000_000, compute=0.05, slowdown=slowdown
    )
    job = PlanRequest(cluster=replace(Cluster.parse("2x4"), hardware=hardware), optimizer=optimizer, effort=EFFORT)
    planned = plan(job)
    chosen, options = planned.recommendation, contenders(permitted(planned.options, job), job)
    worst = {id(one): regret for one, regret in zip(options, regrets(options, job), strict=True)}
    others = [one for one in options if kind_of(one) != kind_of(chosen)]
    second = min(others, key=lambda one: worst[id(one)])
    ratio = second.time / chosen.time
    found = {"optimizer": str(optimizer), "slower": slower, "bandwidth": bandwidth, "kind": kind_of(chosen)}
    return found | {"recommended": chosen.name, "second": kind_of(second), "as": second.name, "times": round(ratio, 3)}


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """A panel for each optimizer: a field is colored by the kind recommended, and names the best of the others."""
    figure = new_figure(5.6, 3.4 * len(Optimizer))
    panels = figure.subplots(len(Optimizer), 1)
    for axis, optimizer in zip(panels, Optimizer, strict=True):
        for one in (one for one in cells if one["optimizer"] == optimizer):
            x, y = BANDWIDTHS.index(one["bandwidth"]), SLOWER.index(one["slower"])
            axis.bar(x, 0.96, 0.96, y - 0.48, color=COLORS[one["kind"]], alpha=0.45)
            axis.text(
                x, y + 0.12, one["kind"].replace(", ", ",\n"), ha="center", va="center", fontsize=9, weight="bold"
            )
            said = f"{one['second']}\n{one['times']:.2f} times"
            axis.text(x, y - 0.28, said, ha="center", va="center", fontsize=8, color=INK)
        axis.set_xticks(range(len(BANDWIDTHS)), [f"{rate / 1e6:g}" for rate in BANDWIDTHS])
        axis.set_yticks(range(len(SLOWER)), [f"{factor:g}x" for factor in SLOWER])
        axis.set(xlim=(-0.6, len(BANDWIDTHS) - 0.4), ylim=(-0.6, len(SLOWER) - 0.4))
        axis.set_title(str(optimizer), color=INK)
        quiet(axis, across="bandwidth of a NIC (MB/s)", up="slowest worker, over the others")
    figure.suptitle(
        "What is recommended, and the best of the other kinds\n2x4 workers, 100 MB, 50 ms a step",
        color=INK,
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)


def main(words: list[str]) -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("-o", "--output", type=Path, default=PICTURE)
    arguments.add_argument("--redraw", action="store_true", help="from what was planned before")
    chosen, kept = arguments.parse_args(words), kit.RESULTS / "kinds.json"
    cells: list[dict[str, Any]] = json.loads(kept.read_text())["rows"] if chosen.redraw else []
    if not chosen.redraw:
        for optimizer in Optimizer:
            for bandwidth in BANDWIDTHS:
                for slower in SLOWER:
                    cells.append(cell(optimizer, slower, bandwidth))
                    print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
        kept.write_text(compact.text({"rows": cells}))
    draw(cells, chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
