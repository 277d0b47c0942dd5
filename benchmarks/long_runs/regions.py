"""A thousand steps over regions, by real workers: the final losses, what they sent for them, and what a step takes.

    python -m benchmarks.lab.run --settings "10gbit regions" --falling --steps 1020 --every 60 --rate 0.2 --name NAME …
    python -m benchmarks.long_runs.one_process --momentum 0.9 --rates 0.16 --seeds 0 1 2 --keep  # All-Reduce
    python -m benchmarks.lab.run --settings "40mbit regions,10mbit regions" --steps 240 --rate 0.2 --name NAME …
    python -m benchmarks.long_runs.regions collect NAME …     # rows of benchmarks/results/long_regions.json
    python -m benchmarks.long_runs.regions write              # table and picture

Losses do not depend on how long a step takes, as every schedule here is fixed, so they come from runs that do not sleep
over links as fast as the machine; what a step takes comes from runs over shaped links.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks import compact, kit
from benchmarks.lab.contestants import named
from benchmarks.lab.plan import Planner
from benchmarks.lab.plots import LINES, name_ends, pyplot
from benchmarks.lab.predict import Point, simulated_ms
from benchmarks.lab.setting import MODEL_BYTES, Setting, settings
from partreduce.report.axes import quiet
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.timing.cost import communication

Row = dict[str, Any]
RESULT = kit.RESULTS / "long_regions.json"
CLUSTER = Cluster.regular(4, 4)
FREE, LINKS = "10gbit regions", ("40mbit regions", "10mbit regions")
ADAMW, MOMENTUM = ", AdamW", ", momentum"
STEPS = 1020
BASE, REGIONS = "hierarchical", "regions, all every 30 by outer steps, int4"
PARAMETERS, REPLICAS = "regions, all every 15 by outer steps, int4", "DiLoCo of replicas, every 15, int4"


def named_under(name: str, optimizer: str, momentum: float = 0.0, steps: int = STEPS) -> str:
    """What a contestant is called under an optimizer of its workers and for more steps; what each sends is the same."""
    name += ADAMW if optimizer == "adamw" else f"{MOMENTUM} {momentum:g}" if momentum else ""
    return name if steps == STEPS else f"{name}, {steps} steps"


WORDS = {
    BASE: "All-Reduce in each step",
    named_under(BASE, "sgd", 0.9): "All-Reduce in each step, momentum 0.9",
    "local SGD, every 30": "local SGD, every 30",
    "DiLoCo, every 30": "DiLoCo, every 30",
    "DiLoCo, every 30, int4": "DiLoCo, every 30, 4 bits",
    "DiLoCo, every 100": "DiLoCo, every 100",
    "DiLoCo, every 100, int4": "DiLoCo, every 100, 4 bits",
    "streaming in four, every 30": "streaming in four, every 30",
    "streaming in four, every 30, int4": "streaming in four, every 30, 4 bits",
    "pairs by outer steps, every 30": "pairs, every 30",
    "regions, all every 30 by outer steps": "regions in each step, outer steps every 30",
    REGIONS: "regions in each step, outer steps every 30 in 4 bits",
    named_under(REGIONS, "sgd", 0.9): "regions in each step, outer steps every 30 in 4 bits, momentum 0.9",
    "regions, all every 100 by outer steps": "regions in each step, outer steps every 100",
    "regions, all every 15 by outer steps, as published": "recommendation under SGD: regions, all every 15",
    named_under(BASE, "adamw"): "All-Reduce in each step, AdamW",
    named_under(BASE, "adamw", steps=1170): "All-Reduce in each step, AdamW, 1,170 steps",
    named_under(REPLICAS, "adamw"): "regions as replicas, outer steps every 15 in 4 bits, AdamW",
    named_under(REPLICAS, "sgd", 0.9): "regions as replicas, outer steps every 15 in 4 bits, momentum 0.9",
    named_under(
        "DiLoCo of replicas, every 30, int4", "adamw"
    ): "regions as replicas, outer steps every 30 in 4 bits, AdamW",
    named_under(
        REPLICAS, "adamw", steps=1170
    ): "regions as replicas, outer steps every 15 in 4 bits, AdamW, 1,170 steps",
    named_under(
        "DiLoCo of replicas, every 13, int4", "adamw"
    ): "regions as replicas, outer steps every 13 in 4 bits, AdamW",
    named_under(PARAMETERS, "adamw"): "regions in each step, outer steps every 15 in 4 bits, AdamW",
    named_under("DiLoCo, every 15, int4", "adamw"): "DiLoCo, every 15, 4 bits, AdamW",
    named_under("DiLoCo, every 30, int4", "adamw"): "DiLoCo, every 30, 4 bits, AdamW",
    named_under("streaming in four, every 30, int4", "adamw"): "streaming in four, every 30, 4 bits, AdamW",
    named_under("local SGD, every 30", "adamw"): "local AdamW, every 30",
    "nodes every 2, all every 18": "recommendation over 40 Mbit/s: regions every 2, all every 18",
    "nodes every 2, all every 40": "recommendation over 10 Mbit/s: regions every 2, all every 40",
}
DRAWN = (
    BASE,
    named_under(BASE, "sgd", 0.9),
    named_under(BASE, "adamw"),
    REGIONS,
    named_under(REPLICAS, "adamw", steps=1170),
    named_under(PARAMETERS, "adamw"),
)
RECOMMENDED = {"40mbit regions": "nodes every 2, all every 18", "10mbit regions": "nodes every 2, all every 40"}
CLOSE = 0.15
ABOUT = """Four regions of four workers, a text model of 2.17 MB in four layers, plain SGD unless a momentum or AdamW
is named, with batches of 16 a worker, 1,020 steps, rates that fall to nothing along half a cosine from the best of
0.1, 0.2 and 0.4 (All-Reduce: and 0.8; under momentum: 0.02, 0.04 … 0.64) in runs of 252 steps, of regions under
momentum the best of 0.02, 0.04, 0.08 and 0.16 in runs as long as these, of replicas of 0.04 and 0.08. Under AdamW
(torch's betas and weight decay) one seed chose 0.002 in runs as long: All-Reduce ended at 1.70, 1.44, 1.44 and 1.60
from 0.001, 0.002, 0.003 and 0.004, replicas every 15 at 1.55, 1.49 and 1.57 from 0.0015, 0.002 and 0.003; what else is
under AdamW was given one rate. Of replicas every 15 the first seed ended at 1.55 with outer rate 0.7, at 1.56 with
outer momentum 0.7, and at 1.53 with momentum 0.3 from 0.0028 (`one_process --change`); as they are at 1.51 with AdamW
fused, as in these runs, and at 1.49 without, so that 0.02 is rounding. Runs of 1,170 steps have their rates fall over
these, and are compared in bytes with All-Reduce's 1,020. Outer steps have rate 1 and momentum 0.5. Regions that
average in each step average parameters after each worker's own inner step; as replicas they average gradients before
it, which under AdamW is another training. What a command of `one_process` (once `one_model`) trained had no real
workers: of the first seed real ones under All-Reduce ended at 1.8785 and one process at 1.8802, and replicas under
AdamW at 2.4520 and 2.4518 after 120 steps at a constant 0.002. Medians [lowest-highest] over seeds; the machine's load
was {low:.0f} to {high:.0f}. Losses are training losses of the mean model over 2,048 places; told right are next
letters at 4,096 held-out places. Bytes are those of the schedules, seconds are steps times milliseconds per step, of
which there is one run each, of 120 or 240 steps; in parentheses they are predicted, without sums inside replicas."""


def collected(names: list[str]) -> dict[str, Any]:
    """The cells of these runs of the lab, beside those that are kept; a step's milliseconds by links and contestant."""
    content: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": [], "steps": []}
    for name in names:
        said = json.loads((kit.RESULTS / "raw" / f"lab-{name}.json").read_text())
        about = {"commit": said["head"]["commit"], "command": said["head"]["command"]}
        under = {setting["name"]: (setting["optimizer"], setting["momentum"]) for setting in said["settings"]}
        for cell in said["cells"]:
            where, measured, raced = cell["setting"], cell["measured"], cell["contestant"]
            who = RECOMMENDED[where] if raced == "planner's recommendation" else named_under(raced, *under[where])
            sent = {"ms": measured["step_ms"], "mb": measured["nic_mb"]}
            if where != FREE:
                content["steps"].append({"links": where, "contestant": who, **sent, **about})
                continue
            if measured["ended"] == "time":
                continue  # a run cut short has no final loss
            rate = said["measure"]["rates"][where][raced]
            row = {"contestant": who, "rate": rate, "seed": cell["repetition"], "load": cell["load"], **sent, **about}
            content["runs"].append(
                row | {"right": measured["accuracies"][-1][1], "curve": [(s, loss) for s, _, loss in measured["curve"]]}
            )
    return content


@dataclass(frozen=True, slots=True)
class Contestant:
    """Everything about one, over its seeds."""

    name: str
    runs: list[Row]
    steps: list[Row]

    @property
    def steps_as(self) -> str:
        """Whose steps and bytes are its own."""
        return re.sub(r", \d+ steps$", "", self.name).partition(MOMENTUM)[0].removesuffix(ADAMW)

    @property
    def length(self) -> int:
        """Steps of a run."""
        length: int = self.runs[0]["curve"][-1][0]
        return length

    @property
    def losses(self) -> list[float]:
        return [run["curve"][-1][1] for run in self.runs]

    def ms(self, links: str) -> float | None:
        found = [row["ms"] for row in self.steps if row["links"] == links]
        return median(found) if found else None

    def sent(self, setting: Setting) -> tuple[float, float]:
        """Megabytes that leave a region in a step, and in the step that sends most; from the schedule."""
        cost = communication(
            schedule_of(self.steps_as, setting), Planner({}).hardware(setting), model_bytes=MODEL_BYTES[setting.task]
        )
        return cost.nic_bytes_per_step / 1e6, (cost.peak_nic_bytes or cost.nic_bytes_per_step) / 1e6

    def predicted(self, setting: Setting) -> float:
        schedule = schedule_of(self.steps_as, setting)
        point = Point(self.name, setting, schedule, str(schedule.strategy.transport.algorithm), 0.0, 240)
        return simulated_ms(point, Planner({}).hardware(setting))


def schedule_of(name: str, setting: Setting) -> Any:  # noqa: ANN401 - a Schedule
    """As it runs; torch's hierarchical All-Reduce as ours."""
    from partreduce.topo.strategies.axes import AllReduceAlgorithm, Transport

    if (make := named(name, Planner({})).make) is not None:
        schedule = make(CLUSTER, setting)
        assert schedule is not None
        return schedule.meetings
    plain = build("allreduce", CLUSTER)
    return replace(
        plain, strategy=replace(plain.strategy, transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL))
    )


def listed(content: dict[str, Any]) -> list[Contestant]:
    found = []
    for name in WORDS:
        runs = [run for run in content["runs"] if run["contestant"] == name]
        one = Contestant(name, runs, [])
        if runs:
            found.append(replace(one, steps=[row for row in content["steps"] if row["contestant"] == one.steps_as]))
    return found


def table(found: list[Contestant]) -> str:
    """A line a contestant."""
    known = settings(CLUSTER.num_workers)
    base = next(one for one in found if one.name == BASE)
    all_bytes = base.sent(known[LINKS[0]])[0] * base.length
    rows = []
    for one in found:
        sent, peak = one.sent(known[LINKS[0]])
        cells = [WORDS[one.name], f"{one.runs[0]['rate']:g}", kit.middle(one.losses, ".3f"), len(one.runs)]
        cells += [
            f"{median(run['right'] for run in one.runs):.3f}",
            f"{sent:.3g}",
            f"{all_bytes / sent / one.length:.0f}×",
        ]
        cells += [f"{peak:.2g}"]
        for links in LINKS:
            ms, predicted = one.ms(links), one.predicted(known[links])
            cells.append(f"{'–' if ms is None else f'{ms:.0f}'} ({predicted:.0f})")
            seconds = (ms or predicted) * one.length / 1e3
            cells.append(f"{seconds:.0f}" if ms else f"({seconds:.0f})")
        rows.append(cells)
    head = [
        "contestant",
        "rate",
        "final loss",
        "seeds",
        "told right",
        "MB out of a region and step",
        "fewer in the run",
        "MB at the peak",
    ]
    for links in LINKS:
        rate = links.removesuffix("mbit regions")
        head += [f"ms per step, {rate} Mbit/s (predicted)", "seconds of the run"]
    return kit.table(head, rows)


def close(found: list[Contestant]) -> str:
    """How many step times the nominal links predict within 15 %."""
    known, off = settings(CLUSTER.num_workers), []
    for links in LINKS:
        measured = [one for one in found if one.name == one.steps_as]
        off += [abs(one.predicted(known[links]) / ms - 1) for one in measured if (ms := one.ms(links)) is not None]
    near = sum(error <= CLOSE for error in off)
    return f"{near} of {len(off)} step times are predicted within 15 % (median {median(off):.1%})."


def draw(found: list[Contestant]) -> None:
    """Loss over steps, and over seconds over the thinner link: the median seed of each, six lines."""
    plt, known = pyplot(), settings(CLUSTER.num_workers)
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained", sharey=True)
    by_name = {one.name: one for one in found}
    for axis, links in zip(axes, (None, LINKS[1]), strict=True):
        ends = []
        for name, (color, dash) in zip([n for n in DRAWN if n in by_name], LINES, strict=False):
            one = by_name[name]
            unit = 1.0 if links is None else (one.ms(links) or one.predicted(known[links])) / 1e3
            run = sorted(one.runs, key=lambda run: run["curve"][-1][1])[len(one.runs) // 2]
            at, losses = [step * unit for step, _ in run["curve"]], [loss for _, loss in run["curve"]]
            axis.plot(at, losses, dash, color=color, linewidth=2)
            ends.append((WORDS[name].partition(":")[0], at[-1], losses[-1], color))
        axis.set(ylim=(1.35, 2.9))
        if links is not None:
            axis.set_xscale("log")
            axis.set_xlim(left=10)
        quiet(
            axis,
            across="steps" if links is None else "seconds over 10 Mbit/s, measured or predicted",
            up="training loss of the mean model",
        )
        name_ends(axis, ends)
    figure.savefig(RESULT.with_suffix(".png"), dpi=100)
    plt.close(figure)


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("what", choices=["collect", "write"])
    arguments.add_argument("names", nargs="*")
    chosen = arguments.parse_args()
    if chosen.what == "collect":
        RESULT.write_text(compact.text(collected(chosen.names), digits=5))
        return 0
    content = json.loads(RESULT.read_text())
    found = listed(content)
    commands = dict.fromkeys((row["commit"], row["command"]) for row in content["runs"] + content["steps"])
    said = "Each from the commit named and what came with this page:\n\n"
    said += "\n".join(f"* `{command}` at {commit}" for commit, command in commands)
    loads = [run["load"] for run in content["runs"]]
    about = ABOUT.replace("\n", " ").format(low=min(loads), high=max(loads))
    about += f" From nominal links {close(found)}"
    kit.write(RESULT, "A thousand steps over regions", about, table(found), "![losses](long_regions.png)", said)
    draw(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
