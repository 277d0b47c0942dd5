"""Read the switches above a job's nodes from SLURM: topology addresses, and topology.conf (tree plugin)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from partreduce.topo.errors import FileError, InputError
from partreduce.topo.hardware import Switch


def switches_of(addresses: Sequence[str]) -> tuple[Switch, ...]:
    """Return the switches named in SLURM's topology addresses of nodes 0, 1, …, the lowest first, without bandwidths.

    An address is two lines: `s0.s4.node7` (SLURM_TOPOLOGY_ADDR, the highest switch first) and `switch.switch.node`
    (SLURM_TOPOLOGY_ADDR_PATTERN). Switches above all nodes are left out, since the job does not use their uplinks; of
    switches above the same nodes only the lowest is kept.
    """
    below: dict[tuple[str, ...], list[int]] = {}
    for node, address in enumerate(addresses):
        path, _, pattern = address.partition("\n")
        kinds = pattern.split(".")
        names = path.split(".", len(kinds) - 1)
        for end, (_, kind) in enumerate(zip(names, kinds, strict=False), start=1):
            if kind == "switch":
                below.setdefault(tuple(names[:end]), []).append(node)
    lowest_first = sorted(below.items(), key=lambda item: (-len(item[0]), item[1]))
    distinct = dict.fromkeys(tuple(nodes) for _, nodes in lowest_first if len(nodes) < len(addresses))
    return tuple(Switch(nodes) for nodes in distinct)


def read_switches(path: Path, num_nodes: int, listed: str = "") -> tuple[Switch, ...]:
    """Return the switches above the nodes 0, 1, … of a job from the topology.conf at `path`, without bandwidths.

    Lines such as `SwitchName=s0 Nodes=n[0-3]` and `SwitchName=top Switches=s[0-1]` are read, other settings ignored.
    `listed` names the job's nodes in order, such as `n[0-3]`; by default they are all nodes of the file in its order.
    Raises FileError if the file cannot be read, InputError if its nodes do not fit.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read ({error})") from None
    above: dict[str, str] = {}  # "node n0" or "switch s0" → the switch directly above it
    for number, line in enumerate(lines, start=1):
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        fields = {key.lower(): value for key, value in words.items()}
        if "switchname" not in fields:
            continue
        below = [("switch", name) for name in expand_hosts(fields.get("switches", ""))]
        below += [("node", name) for name in expand_hosts(fields.get("nodes", ""))]
        if not below:
            raise InputError(f"{path}: line {number}: names neither Nodes nor Switches below {fields['switchname']}")
        above |= {f"{kind} {name}": fields["switchname"] for kind, name in below}
    nodes = list(expand_hosts(listed)) or [key.removeprefix("node ") for key in above if key.startswith("node ")]
    if missing := [node for node in nodes if f"node {node}" not in above]:
        raise InputError(f"{path}: has no node {missing[0]}")
    if len(nodes) != num_nodes:
        way_out = (
            f"write switches={path}:NODES with the job's nodes, such as {path}:{nodes[0]}" if nodes else "see its lines"
        )
        raise InputError(f"{path}: has {len(nodes)} nodes and the cluster {num_nodes}; {way_out}")
    return switches_of([_address(node, above, path) for node in nodes])


def _address(node: str, above: dict[str, str], path: Path) -> str:
    """Return a node's SLURM_TOPOLOGY_ADDR and, in a second line, its SLURM_TOPOLOGY_ADDR_PATTERN.

    `above` maps "node NAME" and "switch NAME" to the switch directly above. Raises InputError (with the file, `path`)
    if a switch is above itself.
    """
    names, key = [node], f"node {node}"
    while key in above:
        if above[key] in names[1:]:
            raise InputError(f"{path}: switch {above[key]} hangs below itself")
        names.append(above[key])
        key = f"switch {above[key]}"
    return ".".join(reversed(names)) + "\n" + ".".join(["switch"] * (len(names) - 1) + ["node"])


def expand_hosts(hosts: str) -> Iterator[str]:
    """Expand SLURM's host list: `n[0-2,5],gpu1` → n0, n1, n2, n5, gpu1; leading zeros are kept."""
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hosts):
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [[piece] if index % 2 == 0 else list(_numbers(piece)) for index, piece in enumerate(pieces)]
        yield from ("".join(parts) for parts in product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit() and int(last or first) - int(first) < 10**6):
            raise InputError(f"[{ranges}]: is no list of numbers such as [0-3,7]")
        yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))
