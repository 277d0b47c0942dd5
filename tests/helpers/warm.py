"""Commands in processes of their own that need not import torch again: forked from one that has imported everything.

`Warm.start("partreduce", "run", ...)` is `python -m partreduce run ...` without the seconds of its imports, and
`Warm.start("-c", code, ...)` is `python -c code ...`: a process of its own with its own variables, folder, standard
streams and, if wanted, session, which ends as Python does. What /proc says of its command line and first variables is
the warm process's.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types

from helpers import children
from partreduce.runtime.launcher import process_cleanup
from partreduce.runtime.launcher.processes import end_as_python_does, flush_everything

FOR_MOST = ("numpy.ma", "partreduce.runtime.profile", "scipy.sparse.csgraph", "torch.profiler", "yaml", "zmq")
"""Modules imported once for all commands and workers, in addition to those that the launcher imports."""
LIMIT = 250
"""Most seconds for a command, and for the imports of the warm process."""


def _receive_number(connection):
    data = connection.recv(4, socket.MSG_WAITALL)
    assert len(data) == 4, "the warm process or its keeper is gone"
    return int.from_bytes(data, "big")


class RunningCommand:
    """A running command, with the methods of subprocess.Popen that tests use."""

    def __init__(self, connection, pid):
        self._connection, self.pid, self.returncode = connection, pid, None

    def wait(self, timeout=LIMIT):
        """Return the exit code, negative for a signal; raise TimeoutError."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = os.waitstatus_to_exitcode(_receive_number(self._connection))
            self._connection.close()
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and was not waited for yet
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Warm:
    """The warm process of this test process, started on first use; it and its commands end with this process."""

    def __init__(self):
        self._process, self._lock = None, threading.Lock()
        self._address = (
            f"\0partreduce-warm-{os.getpid()}-{secrets.token_hex(8)}"  # no file: folders may have long names
        )

    def _connect(self):
        with self._lock:
            if self._process is None:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(self._address)
                    listener.listen(20)
                    command = [*children.module("helpers.warm"), str(os.getpid()), str(listener.fileno())]
                    environment = children.environment()
                    self._process = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
                    atexit.register(self.close)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        connection.settimeout(LIMIT)
        return connection

    def start(
        self, module, *arguments, streams=(0, 1, 2), cwd=children.ROOT, environment=None, session=False, imports=()
    ):
        """Start `python -m module arguments`, or with "-c" code; `streams` are three file descriptors.

        `imports` are names of modules that the commands of few tests need: the warm process imports them first.
        """
        connection = self._connect()
        settings = [str(cwd), environment or children.environment(), session]
        data = json.dumps([imports, module, [str(a) for a in arguments], *settings]).encode()
        socket.send_fds(connection, [len(data).to_bytes(4, "big")], list(streams))
        connection.sendall(data)
        return RunningCommand(connection, _receive_number(connection))

    def talk(self, module, **options):
        """Start a module in a new session; return (RunningCommand, its standard input, its standard output)."""
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        begun = self.start(module, streams=[theirs_in, theirs_out, 2], session=True, **options)
        os.close(theirs_in)
        os.close(theirs_out)
        return begun, os.fdopen(ours_out, "w"), os.fdopen(ours_in)

    def run(self, module, *arguments, timeout=LIMIT, stdin="", check=False, **options):
        """Run a command to its end, like subprocess.run with captured output as text."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin.encode())
            files[0].seek(0)
            begun = self.start(module, *arguments, streams=[file.fileno() for file in files], **options)
            try:
                code = begun.wait(timeout)
            except BaseException:
                begun.kill()
                begun.wait()
                raise
            for file in files:
                file.seek(0)
            out, err = (file.read().decode() for file in files[1:])
        done = subprocess.CompletedProcess([module, *arguments], code, out, err)
        if check:
            done.check_returncode()
        return done

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()


WARM = Warm()


def _serve(listener):
    """Fork a keeper for each connection, which forks the command; return (module, arguments) in the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    warm = os.getpid()
    while True:
        connection, _ = listener.accept()
        request, descriptors = _receive_request(connection)
        if request is None or os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            continue
        module, arguments, *settings = request
        listener.close()
        _die_with(warm)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keeper, pid = os.getpid(), os.fork()
        if not pid:
            _die_with(keeper)
            connection.close()
            _settle(descriptors, *settings)
            return module, arguments
        for descriptor in (*descriptors, 0, 1, 2):
            os.close(descriptor)
        connection.sendall(pid.to_bytes(4, "big"))
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(OSError):
            connection.sendall(status.to_bytes(4, "big"))
        os._exit(0)


def _receive_request(connection):
    """Import what a command needs; return ([module, arguments, *settings], descriptors), or None if the client died."""
    descriptors = []
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as file:
            imports, *request = json.loads(file.read(int.from_bytes(head, "big")))
    except (OSError, ValueError):
        return None, descriptors
    with contextlib.suppress(ImportError):  # the command itself says so
        _import_once(imports)
    return request, descriptors


def _import_once(names):
    """Import modules, and free no memory of theirs in a command, which would have to copy it first."""
    for name in names:
        if name not in sys.modules:
            importlib.import_module(name)
            gc.freeze()


def _die_with(parent):
    """End this process when process `parent` ends, or now if it has ended."""
    if not process_cleanup.die_with_parent(parent):
        os._exit(1)


def _settle(descriptors, cwd, environment, session):
    """Set up streams, folder, environment, signals and session as in a new process."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    if session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in a shell's background, or under nohup, ignores
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    tempfile.tempdir = None  # TMPDIR may be another now
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - until the process ends
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def main():
    _die_with(int(sys.argv.pop(1)))
    from partreduce.commands import build_app
    from partreduce.runtime.launcher import processes

    with contextlib.suppress(ImportError):
        processes.import_once()
        _import_once(FOR_MOST)
    build_app()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        module, sys.argv[1:] = _serve(listener)
    try:
        if module == "-c":
            sys.argv[:2], code = ["-c"], sys.argv[1]
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(code, vars(sys.modules["__main__"]))
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    # The interpreter would take down what all share, module by module, which takes longer than most commands.
    end_as_python_does()
    flush_everything()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
