"""The switches above a cluster's nodes in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.topo.switches import above

if TYPE_CHECKING:
    from preduce.topo.hardware import Hardware, Switch


def levels(hardware: Hardware, num_nodes: int) -> str:
    """`, under 4 switches of 2 nodes (2 GB/s up), 2 of 4 (1 GB/s up)`, the lowest level first; nothing without any."""
    said: list[str] = []
    for row in above(hardware.switches, num_nodes):
        listed = [hardware.switches[index] for index in sorted({*row.tolist()} - {-1})]
        nodes = _span([str(count) for count in sorted(len(switch.nodes) for switch in listed)])
        bandwidths = _span([_bandwidth(switch) for switch in sorted(listed, key=_slowest_first)])
        words = "" if said else f" switch{'' if len(listed) == 1 else 'es'}"
        plural = "" if said else f" node{'' if nodes == '1' else 's'}"
        said.append(f"{len(listed)}{words} of {nodes}{plural} ({bandwidths} up)")
    return f", under {', '.join(said)}" if said else ""


def _slowest_first(switch: Switch) -> float:
    return -switch.uplink.seconds_per_byte


def _bandwidth(switch: Switch) -> str:
    from preduce.console import size

    inverse = switch.uplink.seconds_per_byte
    return f"{size(1 / inverse)}/s" if inverse else "free"


def _span(ordered: list[str]) -> str:
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"
