"""The head of a result: under what conditions everything below it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.lab.setting import GRID, MODEL_BYTES, TARGETS

if TYPE_CHECKING:
    import argparse

    from benchmarks.lab.setting import Setting


def target_of(setting: Setting, asked: float | None) -> float:
    """The training loss that counts."""
    return float(asked or TARGETS[setting.task])


def head(
    chosen: argparse.Namespace, settings: list[Setting], loads: list[float], repetitions: int
) -> dict[str, object]:
    """What stands above the tables, by keyword."""
    grid = "; ".join(f"{', '.join(f'{rate:g}' for rate in rates)} ({name})" for name, rates in GRID.items())
    rate = f"the best of the grid {grid} in the rehearsal (benchmarks/lab/rates.json)"
    loads = loads or [0.0]
    return {
        "cluster": f"{chosen.nodes}x{chosen.workers_per_node}, one namespace per node, links shaped by tbf both ways",
        "task": "digits CNN, 548,074 parameters (2.19 MB), or where said a character model, 0.5 M parameters",
        "a step": "plain SGD, batch 16 per worker, computing padded by sleep: "
        + ", ".join(f"{s.name}: {1e3 * s.compute:g} ms" for s in settings),
        "rate": rate if chosen.rate is None else f"{chosen.rate:g} for all",
        "the wire": "; ".join(_wire(setting, chosen.nodes, chosen.workers_per_node) for setting in settings),
        "target": ", ".join(f"{s.name}: loss {target_of(s, chosen.target):g}" for s in settings),
        "load average when cells began": f"{min(loads):.1f} to {max(loads):.1f}, of which the lab is a part",
        "repetitions": f"up to {repetitions}, of the slowest contestants 1; medians, [smallest-largest]",
    }


def _wire(setting: Setting, nodes: int, size: int) -> str:
    """The least that exact averaging can take, at the link's nominal rate, and what it therefore leaves to gain."""
    wire = setting.wire_seconds(nodes, size, MODEL_BYTES[setting.task])
    least = max(setting.compute, wire["hierarchical"])
    if not setting.compute:
        return f"{setting.name}: as fast as the machine is, and no step sleeps"
    return (
        f"{setting.name}: flat ring {1e3 * wire['flat ring']:.0f} ms, hierarchical {1e3 * wire['hierarchical']:.0f} ms "
        f"per step beside {1e3 * setting.compute:g} ms of computing; overlapped, without headers and slow workers, "
        f"that is {least / setting.compute:.1f} times a step that only computes"
    )
