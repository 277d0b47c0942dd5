"""The worked example through the planner (4x4, 552 MB, 10 GB/s inside a node, 5 GB/s NIC), and random bandwidths.

    python -m benchmarks.planner.worked_example [--time-limit 25] [--seeds 0 1 2] [--ratios 5] [--draw 2026]

Two questions, for every seed of the search: the least consensus distance within 110.4 ms of communication per step
(what Prague's Figure 10 costs), and the least communication at Figure 10's consensus distance, 8/7, in periods up to
48. Then the first question's kind on bandwidths drawn at random (NIC 1 to 32 GB/s, inside 1 to 20 times that): the
whole front against the catalogue's. The catalogue beside it has all its parameters swept. "Bound" is the proved least
consensus distance of any schedule of the named class, of any period, that communicates no more than the one found.
Writes FILE.json and FILE.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.planner.comparison import RESULTS, TARGET, Answer, answer, best_within, machine, place_rows
from partreduce import Job, Limits, Objective
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Form

MODEL = 552_000_000
BUDGET = 0.1104
VALUE = 8 / 7
LEAST, SPAN, TIMES = 1e9, 10**1.5, 20.0


def cluster(inside: float, nic: float) -> Cluster:
    hardware = Hardware(inside=Link.of_bandwidth(inside), nic=Link.of_bandwidth(nic), model_bytes=MODEL)
    return Cluster.regular(4, 4, hardware=hardware)


def questions(seed: int, time_limit: float, form: Form) -> dict[str, Job]:
    example = cluster(10e9, 5e9)
    return {
        f"at most {1e3 * BUDGET:g} ms": Job(
            cluster=example, objective=Objective.CONSENSUS_DISTANCE, limits=Limits(max_communication=BUDGET), form=form,
            time_limit=time_limit, seed=seed,
        ),
        "consensus distance at most 8/7": Job(
            cluster=example, objective=Objective.COMMUNICATION, form=form,
            limits=Limits(max_consensus_distance=VALUE, max_period=48), time_limit=time_limit, seed=seed,
        ),
    }  # fmt: skip


def question_row(form: Form, words: str, job: Job, found: Answer) -> list[str]:
    recommendation, budget = found.plan.recommendation, job.limits.max_communication
    entry = best_within(found.catalogue, **({"seconds": budget} if budget else {"consensus_distance": VALUE}))
    assert entry is not None
    gain = (
        entry.consensus_distance / float(recommendation.consensus_distance)
        if budget
        else entry.seconds / recommendation.communication
    )
    bound = "-" if recommendation.bound is None else f"{recommendation.bound:.5f}"
    return [
        str(form), words, str(job.seed),
        f"{1e3 * recommendation.communication:.3f} ms, {float(recommendation.consensus_distance):.5f}",
        str(recommendation.period), bound, recommendation.status,
        f"{entry.name}: {1e3 * entry.seconds:.2f} ms, {entry.consensus_distance:.4f}", f"{gain:.2f}x",
        found.spent,
    ]  # fmt: skip


def ratio_row(inside: float, nic: float, seed: int, found: Answer) -> list[str]:
    bandwidths, verdict = f"{inside / 1e9:.2f}, {nic / 1e9:.2f}", "yes" if found.meets_target else "no"
    gains = [found.most_consensus_distance.calmer(), found.most_communication.cheaper()]
    return [bandwidths, str(seed), str(len(found.plan.front)), *gains, verdict, found.spent]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=25.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ratios", type=int, default=5)
    parser.add_argument("--draw", type=int, default=2026, help="seed of the random bandwidths")
    parser.add_argument("--forms", nargs="+", default=["ring", "hierarchical"], choices=[str(form) for form in Form])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "worked_example")
    options = parser.parse_args()
    seeds = " ".join(map(str, options.seeds))
    command = (
        f"python -m benchmarks.planner.worked_example --time-limit {options.time_limit:g} --seeds {seeds} --ratios "
        f"{options.ratios} --draw {options.draw} --forms {' '.join(options.forms)}"
    )
    report = Report(command, options.output)
    for form in (Form(name) for name in options.forms if name == Form.RING):
        ask(form, options.seeds, options.time_limit, report)
    rng = np.random.default_rng(options.draw)
    for seed in range(options.ratios):
        nic = LEAST * SPAN ** rng.uniform()
        inside = nic * TIMES ** rng.uniform()
        found = answer(Job(cluster=cluster(inside, nic), time_limit=options.time_limit, seed=seed))
        report.drawn.append(ratio_row(inside, nic, seed, found))
        report.fronts += [f"\n### {inside / 1e9:.2f} GB/s inside, {nic / 1e9:.2f} GB/s NIC\n", *place_rows(found)]
        report.ratios.append({"inside": inside, "nic": nic, "seed": seed} | found.to_json())
        report.add(report.drawn[-1], found)
    for form in (Form(name) for name in options.forms if name != Form.RING):
        ask(form, options.seeds[:1], options.time_limit, report)
    print(f"wrote {options.output}.json and .md")


def ask(form: Form, seeds: list[int], time_limit: float, report: Report) -> None:
    for seed in seeds:
        for words, job in questions(seed, time_limit, form).items():
            found = answer(job)
            report.asked.append(question_row(form, words, job, found))
            report.questions.append({"form": form, "asked": words, "seed": seed} | found.to_json())
            report.add(report.asked[-1], found)


@dataclass
class Report:
    """What was found so far; both files are written after every answer, so that a run that is stopped loses nothing."""

    command: str
    output: Path
    questions: list[object] = field(default_factory=list)
    ratios: list[object] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    drawn: list[list[str]] = field(default_factory=list)
    fronts: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, row: list[str], found: Answer) -> None:
        print(" | ".join(row), flush=True)
        self.loads.append(found.load)
        about = (
            f"`{self.command}`; {machine()}, shared, load average {min(self.loads):.1f} to {max(self.loads):.1f}: the "
            "CPU seconds in brackets say how much of the wall-clock time the planner really had. Figure 10 has "
            "consensus distance 1.1429 at 110.4 ms (ring)."
        )
        head = [
            "form",
            "asked",
            "seed",
            "found",
            "period",
            "bound",
            "status",
            "best catalogue entry",
            "gain",
            "s (CPU)",
        ]
        text = f"# The worked example\n\n{about}\n\n" + markdown(head, self.asked)
        if self.drawn:
            head = ["inside, NIC (GB/s)", "seed", "front", "less consensus distance", "less communication"]
            text += "\n## Random bandwidths\n\n" + markdown([*head, f"≥ {TARGET}x", "s (CPU)"], self.drawn)
            text += "\nEvery entry of the catalogue's own front, so that nothing hides in the best ratio:\n"
            text += "\n".join(self.fronts) + "\n"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        record = {"about": about, "questions": self.questions, "ratios": self.ratios}
        self.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        self.output.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
