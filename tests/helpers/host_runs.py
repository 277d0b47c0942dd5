"""`partreduce run` over the two hosts of `sshd`, two workers on each, as a process of its own."""

import re
import time

from helpers.warm import WARM

LIMIT = 500
"""Seconds for what takes ten on a machine that does little else."""
PATIENT = """
import sys
from partreduce.__main__ import main
from partreduce.runtime.launcher import over_ssh
over_ssh.GRACE_SECONDS, over_ssh.START_SECONDS = float(sys.argv.pop(1)), 500.0
sys.exit(main())
"""
"""The command with other times: with a long grace period, who learns of a loss has said so before it is ended."""


class Begun:
    """A run of a script, which says "under way as PID" in worker 3; `options` are the command's, before the script."""

    def __init__(self, hosts, folder, script, schedule, *arguments, grace=60.0, options=()):
        (folder / "hosts").write_text("a slots=2\nb slots=2  # a comment\n")
        (folder / "train.py").write_text(script)
        self._written = [folder / "output", folder / "errors"]
        command = ["-c", PATIENT, grace, "run", "--hosts", "hosts", "--ssh", hosts.ssh, "--schedule", schedule]
        with self._written[0].open("w") as output, self._written[1].open("w") as errors:
            streams = [0, output.fileno(), errors.fileno()]
            self.process = WARM.start(*command, *options, "train.py", *arguments, streams=streams, cwd=folder)
        hosts.runs.append(self.process)

    @property
    def errors(self):
        """What it has written so far."""
        return self._written[1].read_text()

    def ended(self):
        """The exit code, and what it wrote on both streams."""
        return self.process.wait(LIMIT), *(path.read_text() for path in self._written)

    def under_way(self):
        """Worker 3's process, once it has trained a few rounds."""
        wait_until(lambda: re.search(r"under way as \d+\n", self._written[0].read_text()), lambda: self.errors)
        return int(re.search(r"under way as (\d+)", self._written[0].read_text())[1])


def wait_until(condition, said=lambda: ""):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
