"""Hosts for tests: OpenSSH's server in two network namespaces, which the ordinary ssh client reaches by name."""

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path

_numbers = itertools.count()
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_not():
    """Why no hosts can be had here; empty where they can."""
    if os.geteuid() or not shutil.which("ip"):
        return "needs root and `ip netns`"
    return (
        "" if SSHD and shutil.which("ssh") else "needs OpenSSH's client and server (`apt-get install openssh-server`)"
    )


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _read(command_line: Path):
    """The words of a process; none once it is gone."""
    with contextlib.suppress(OSError):
        return command_line.read_bytes().replace(b"\0", b" ").decode()
    return ""


class Hosts:
    """Hosts `a` and `b`, on a bridge with this machine; `ssh` is the command that knows their addresses and keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._servers, self.runs = folder, [], []
        # The kernel takes away a namespace's links some time after it, so no two of a process share names.
        number = next(_numbers)
        self.mark = f"pr{os.getpid() % 10**6:06d}{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        net = 1 + (os.getpid() + number) % 250
        self.addresses = {"here": f"10.213.{net}.1", "a": f"10.213.{net}.2", "b": f"10.213.{net}.3"}
        _ip("link", "add", self.mark, "type", "bridge")
        _ip("addr", "add", f"{self.addresses['here']}/24", "dev", self.mark)
        _ip("link", "set", self.mark, "up")
        for name in "ab":
            self._start(name)
        lines = "".join(f"Host {name}\n  HostName {self.addresses[name]}\n" for name in "ab")
        common = f"Host *\n  IdentityFile {folder / 'key'}\n  StrictHostKeyChecking accept-new\n"
        (folder / "config").write_text(f"{lines}{common}  UserKnownHostsFile {folder / 'known'}\n  LogLevel ERROR\n")
        self.ssh = f"ssh -F {folder / 'config'}"

    def _start(self, name):
        space, outside = self.mark + name, f"{self.mark}{name}o"
        _ip("netns", "add", space)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outside, "master", self.mark, "up")
        _ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", space, "link", "set", link, "up")
        config = self.folder / f"sshd-{name}"
        config.write_text(
            f"ListenAddress {self.addresses[name]}\nHostKey {self.folder / 'key'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder / 'authorized'}\nStrictModes no\nPermitRootLogin yes\n"
        )
        command = ["ip", "netns", "exec", space, SSHD, "-D", "-e", "-f", str(config)]
        self._servers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 60
        while not self._listens(space):
            assert self._servers[-1].poll() is None, "sshd ended"
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.05)

    def _listens(self, space):
        listening = subprocess.run(
            ["ip", "netns", "exec", space, "ss", "-Hltn"], capture_output=True, text=True, check=True
        )
        return ":22 " in listening.stdout

    def cut_off(self, name):
        """From now on nothing passes between this host and the others; nobody is told."""
        _ip("link", "set", f"{self.mark}{name}o", "nomaster")

    def connect_again(self, name):
        """The link is whole again."""
        _ip("link", "set", f"{self.mark}{name}o", "master", self.mark)

    def _everything(self, name):
        """The command lines of all that runs there."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.mark + name], capture_output=True, text=True, check=True
        ).stdout
        lines = {int(pid): _read(Path(f"/proc/{pid}/cmdline")) for pid in found.split()}
        return {pid: line for pid, line in lines.items() if line}

    def processes(self, name):
        """The command lines of what runs there, but for sshd's own."""
        return {pid: line for pid, line in self._everything(name).items() if "sshd" not in line}

    def agent(self, name):
        """The process there that ssh has started."""
        there = self.processes(name)
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in there}
        return next(pid for pid, parent in parents.items() if parent not in there)

    def servers(self, name):
        """sshd's own: that listens, and that of every connection."""
        return self._everything(name).keys() - self.processes(name)

    def clients(self):
        """The ssh clients of this machine that are connected, or still try to be."""
        return [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if str(self.folder / "config") in _read(path)
        ]

    def close(self):
        """End `runs`, what is left of them on the hosts, and these."""
        for process in [*self.runs, *self._servers]:
            process.kill()
            process.wait()
        for name in "ab":
            for pid in self._everything(name):
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            _ip("netns", "del", self.mark + name)
        _ip("link", "del", self.mark)
