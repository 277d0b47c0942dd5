"""`partreduce run --nnodes 2` with two workers on each node, on loopback or in two network namespaces."""

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

from helpers.waiting import until
from helpers.warm import WARM

LIMIT = 400
"""Most seconds for an operation that takes ten on an idle machine."""
LAUNCHER = """
import sys
from helpers.two_nodes import enter
space, grace = sys.argv.pop(1), float(sys.argv.pop(1))
if space != "here":
    enter(space)
from partreduce.__main__ import main
from partreduce.runtime.launcher import nodes, supervision
supervision.watch.__kwdefaults__["grace"] = grace
nodes.START_SECONDS = 300.0
from partreduce.commands import run
run.launch = lambda *a, launch=run.launch, **k: launch(*a, grace=grace, **k)
sys.exit(main())
"""
"""The command in a namespace, with another grace period between a failure and the end of the survivors."""
_numbers = itertools.count()
wait_until = partial(until, seconds=LIMIT, pause=0.05)


def why_no_network():
    """Return why no namespaces can be created; "" if they can."""
    return "" if os.geteuid() == 0 and shutil.which("ip") else "needs root and `ip netns`"


def _ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def enter(space):
    """Move this process into a network namespace."""
    with Path(f"/run/netns/{space}").open() as file:
        assert ctypes.CDLL(None).setns(file.fileno(), 0x40000000) == 0, "CLONE_NEWNET"


class Network:
    """The namespaces of nodes 0 and 1, connected by a bridge; `address` is that of node 0."""

    def __init__(self):
        # The kernel takes away a namespace's links some time after it, so no two of a process share names.
        number = next(_numbers)
        self.mark, net = f"pr{os.getpid() % 10**6:06d}{number}", 1 + (os.getpid() + number) % 250
        self.spaces, self.address = [f"{self.mark}n{node}" for node in range(2)], f"10.213.{net}.10"
        _ip("link", "add", self.mark, "type", "bridge")
        _ip("link", "set", self.mark, "up")
        for node, space in enumerate(self.spaces):
            _ip("netns", "add", space)
            _ip("link", "add", f"{space}o", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"{space}o", "master", self.mark, "up")
            _ip("-n", space, "addr", "add", f"10.213.{net}.1{node}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", space, "link", "set", link, "up")

    def cut(self):
        """Drop all packets between the nodes from now on, without an error on either."""
        _ip("link", "set", f"{self.spaces[1]}o", "nomaster")
        assert f"master {self.mark}" not in _ip("link", "show", f"{self.spaces[1]}o"), "the fault fired"

    def mend(self):
        _ip("link", "set", f"{self.spaces[1]}o", "master", self.mark)

    def close(self):
        for space in self.spaces:
            _ip("netns", "del", space)
        _ip("link", "del", self.mark)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class NodesRun:
    """A run of a script whose worker 3 prints "under way as PID"; `options` are those of `partreduce run`."""

    def __init__(self, folder, script, schedule, *arguments, network=None, grace=60.0, options=(), order=(0, 1)):
        (folder / "train.py").write_text(script)
        self.folders = [folder / f"node{node}" for node in range(2)]
        self.launchers, self._network = [None, None], network
        self._endpoint = f"{network.address}:29400" if network else f"127.0.0.1:{free_port()}"
        self._options = ["--schedule", schedule, *options, folder / "train.py", *arguments]
        self._grace = grace
        for place in self.folders:
            place.mkdir()
            for name in ("output", "errors"):
                (place / name).touch()
        for node in order:
            self.start(node)

    def start(self, node, *options):
        """Start a node's launcher, again if it has ended."""
        if self.launchers[node] is not None:
            self.launchers[node].wait(LIMIT)
        space = self._network.spaces[node] if self._network else "here"
        flags = ["--nnodes", 2, "--node-rank", node, "--rdzv-endpoint", self._endpoint, "--rdzv-id", "test", *options]
        files = [(self.folders[node] / name).open("a") for name in ("output", "errors")]
        streams = [0, *(file.fileno() for file in files)]
        words = ["-c", LAUNCHER, space, self._grace, "run", *flags, *self._options]
        self.launchers[node] = WARM.start(*words, streams=streams, cwd=self.folders[node], session=True)
        for file in files:
            file.close()

    def text_of(self, name, *nodes):
        """Return what the nodes have written to "output" or "errors" so far."""
        return "".join((self.folders[node] / name).read_text() for node in nodes or (0, 1))

    @property
    def errors(self):
        return self.text_of("errors")

    def ended(self):
        """Wait for the end; return both launchers' exit codes, standard output and standard error."""
        codes = [launcher.wait(LIMIT) for launcher in self.launchers]
        return codes, self.text_of("output"), self.errors

    def ends(self, *expected):
        """Check that both launchers end with these exit codes and no process remains; return output and errors."""
        codes, output, errors = self.ended()
        assert tuple(codes) == expected, errors
        self.nothing_is_left()
        return output, errors

    def under_way(self):
        """Wait until worker 3 has trained a few rounds; return its process id."""
        wait_until(lambda: re.search(r"under way as \d+\n", self.text_of("output", 1)), lambda: self.errors)
        return int(re.search(r"under way as (\d+)", self.text_of("output", 1))[1])

    def processes(self, node):
        """Return the ids of a node's processes, found by their working folder; zombies have none."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "cwd").readlink() == self.folders[node]:
                    found.append(int(folder.name))
        return found

    def nothing_is_left(self):
        for node in range(2):
            wait_until(lambda node=node: not self.processes(node), lambda: self.errors)

    def close(self):
        for node in range(2):
            for pid in self.processes(node):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
