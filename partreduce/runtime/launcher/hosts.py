"""Hosts: the machines that a run is spread over, from a file as mpirun reads it, and which workers run where."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import FileError, InputError

LINE = re.compile(r"(?P<name>[^\s=-][^\s=]*)(\s+slots\s*=\s*(?P<slots>[0-9]{1,6}))?")


def read_hosts(path: Path) -> dict[str, int | None]:
    """The hosts in their order, each with its slots, where some are said; `#` begins a comment.

    A host that is named in several lines has the slots of all, one for each where none are said, as in the node files
    of batch systems.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8; write a host a line, such as `gpu1 slots=4`") from None
    hosts: dict[str, int | None] = {}
    for number, line in enumerate(lines, start=1):
        if not (text := line.partition("#")[0].strip()):
            continue
        said = LINE.fullmatch(text)
        if said is None or said["slots"] == "0":
            raise InputError(
                f"{path}: line {number}: {text!r} is no host; write `NAME` or `NAME slots=N`, N at least 1"
            )
        name, slots = said["name"], None if said["slots"] is None else int(said["slots"])
        hosts[name] = (hosts[name] or 1) + (slots or 1) if name in hosts else slots
    if not hosts:
        raise InputError(f"{path}: names no host; write one a line, such as `gpu1 slots=4`")
    return hosts


def placed(
    hosts: dict[str, int | None], num_workers: int | None, cluster: Cluster | None, path: Path
) -> dict[str, tuple[int, ...]]:
    """The workers of each host: as the slots say, or the schedule's nodes, or all hosts alike.

    Args:
        hosts: of `read_hosts`.
        num_workers: in all, if it was said.
        cluster: the schedule's, if there is one. Where it has several nodes they are the hosts, in their order.
        path: the hosts' file, for messages.
    """
    total = cluster.num_workers if cluster is not None else num_workers
    if cluster is not None and cluster.num_nodes == len(hosts):
        each = {name: cluster.workers_of(node) for node, name in enumerate(hosts)}
        for name, slots in hosts.items():
            if slots not in (None, len(each[name])):
                raise InputError(
                    f"{path}: host {name} has slots={slots}; its node of the schedule has {len(each[name])} workers"
                )
        return each
    if cluster is not None and cluster.num_nodes > 1:
        raise InputError(f"{path}: names {len(hosts)} hosts; the schedule is for {cluster.num_nodes} nodes")
    default = 1
    if total is not None and all(slots is None for slots in hosts.values()):
        default, rest = divmod(total, len(hosts))
        if rest or not default:
            raise InputError(f"{path}: {total} workers do not spread evenly over {len(hosts)} hosts; give each slots=N")
    sizes = [slots or default for slots in hosts.values()]
    if total is not None and sum(sizes) != total:
        raise InputError(f"{path}: has {sum(sizes)} slots for {total} workers; let slots=N add up to them")
    ends = accumulate(sizes)
    return {name: tuple(range(end - size, end)) for name, size, end in zip(hosts, sizes, ends, strict=True)}
