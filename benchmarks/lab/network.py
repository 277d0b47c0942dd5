"""Nodes on one machine: network namespaces on a bridge, each link shaped by `tc tbf` in both directions.

Needs root, `ip` and `tc`. Every name carries this process's id, so runs do not meet, and leaving the context deletes
exactly what was made. `netem` is not used: many kernels lack it, so latency is the kernel's own (about 0.06 ms).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Self


def why_not() -> str | None:
    """Return why this machine cannot run the lab, None if it can."""
    if os.geteuid() != 0:
        return "the lab needs root, to make network namespaces"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the lab needs `{tool}` (package iproute2)"
    name = f"prprobe{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=10, check=False)
    if probe.returncode != 0:
        return f"the lab needs network namespaces: {probe.stderr.strip() or 'ip netns add failed'}"
    try:
        made = [
            _run("ip", "-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1", must=False),
            _run("tc", "-n", name, "qdisc", "add", "dev", "probe0", "root", *_tbf("10mbit"), must=False),
            _run("ip", "-n", name, "link", "add", "probe2", "type", "bridge", must=False),
        ]
    finally:
        _run("ip", "netns", "delete", name, must=False)
    missing = [tool for tool, ok in zip(("veth pairs", "tc tbf", "bridges"), made, strict=True) if not ok]
    return f"the lab needs {' and '.join(missing)} in the kernel" if missing else None


def _tbf(rate: str) -> list[str]:
    return ["tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]


def _run(*command: str, must: bool = True) -> bool:
    """Run a command and return whether it succeeded; raise RuntimeError if it `must` and did not."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if must and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.returncode == 0


@dataclass
class Network:
    """`num_nodes` namespaces 10.77.0.1 … on one bridge, with links of this rate (`tc` syntax, such as 200mbit)."""

    num_nodes: int
    rate: str
    subnet: str = "10.77.0"
    tag: str = ""
    """Distinguishes several networks of one process; names of links have room for a few characters only."""

    def __post_init__(self) -> None:
        self._prefix = f"pr{os.getpid() % 100000}{self.tag}"
        self._made: list[str] = []

    @property
    def switch(self) -> str:
        """The namespace of the bridge, where the launcher with the store runs."""
        return f"{self._prefix}sw"

    @property
    def switch_address(self) -> str:
        return f"{self.subnet}.254"

    def namespace(self, node: int) -> str:
        return f"{self._prefix}n{node}"

    def address(self, node: int) -> str:
        return f"{self.subnet}.{node + 1}"

    def prefix_command(self, node: int) -> list[str]:
        """Return the words before a command that run it on a node."""
        return ["ip", "netns", "exec", self.namespace(node)]

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _build(self) -> None:
        self._namespace(self.switch)
        _run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.switch, "addr", "add", f"{self.switch_address}/24", "dev", "br0")
        _run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for node in range(self.num_nodes):
            name, port = self.namespace(node), f"port{node}"
            self._namespace(name)
            _run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.switch)
            _run("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
            self.shape(node, self.rate)

    def shape(self, node: int, rate: str) -> None:
        _run("tc", "-n", self.namespace(node), "qdisc", "replace", "dev", "eth0", "root", *_tbf(rate))
        _run("tc", "-n", self.switch, "qdisc", "replace", "dev", f"port{node}", "root", *_tbf(rate))

    def set_link(self, node: int, *, up: bool) -> None:
        _run("ip", "-n", self.switch, "link", "set", f"port{node}", "up" if up else "down")

    def close(self) -> None:
        while self._made:
            _run("ip", "netns", "delete", self._made.pop(), must=False)
