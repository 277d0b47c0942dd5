"""Run workers in processes forked after torch was imported, which behave like independently started processes.

A fork copies the launcher's random generators, standard input and pending cleanup. A worker must have none of them:
equal random numbers would give equal batches, a background reader of a terminal is stopped, and the first worker to end
must not remove a temporary folder that the others still use. A worker exits by `os._exit`, so this module performs what
Python does at exit. Under torchrun too, an error of partreduce ends the script with one line and its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import io
import json
import os
import signal
import sys
import termios
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from partreduce.runtime import environment as env
from partreduce.runtime.launcher.process_cleanup import CleanupProcess, die_with_parent, end_groups
from partreduce.runtime.launcher.signals import default_signals, defer_signals, end_by_signal, reraise_pending
from partreduce.topo.errors import PartreduceError

IMPORTED_ONCE = (
    "torch",
    "torch._dynamo",  # torch.optim imports it with the first optimizer, which costs seconds
    "partreduce.runtime.optimizer",
    "partreduce.topo.document.canonical",
    "partreduce.topo.document.schedule",
)

Target = str | Path | Callable[[], object]
"""What a worker runs: the path of a Python script, run as `__main__`, or a function without parameters. A script gets
new random seeds in each worker, a function those of the program that forks. That program must not have used several
torch threads before, since forked copies would wait for these threads for ever."""


@dataclass(slots=True)
class Worker:
    """A worker process as the launcher sees it, on this machine or on another node.

    `lost`: why its exit code is unknown; `has_complained`: it wrote errors; `children_until`: when its children are
    killed.
    """

    rank: int
    code: int | None = field(default=None, kw_only=True)  # exit code, or minus the signal that killed it
    lost: str = field(default="", kw_only=True)  # if its node is gone: why its exit code is unknown
    has_complained: bool = field(default=False, kw_only=True)  # whether it wrote to its standard error
    children_until: float = field(default=float("inf"), kw_only=True)  # when its child processes are killed

    def reap(self) -> bool:
        """Set `code`, the exit code, if the worker has ended; return whether it has."""
        raise NotImplementedError

    def signal(self, number: signal.Signals) -> None:
        raise NotImplementedError

    def give_up(self) -> None:
        """Stop waiting for a killed worker of which no exit was reported."""

    def has_unread_errors(self) -> bool:
        """Return whether the worker, which has ended, wrote errors that are not printed yet."""
        return False


class Line(NamedTuple):
    """A line of a worker's output; `errors` says whether it was written to standard error."""

    worker: Worker
    errors: bool
    text: str


@dataclass(slots=True)
class Child(Worker):
    """A forked worker process on this machine; it waits for its environment on the pipe `go`, then runs the script.

    `streams` has the unfinished line of its output and of its errors, by file descriptor. The process stays a zombie
    until the run ends, so that its ID, which is also its process group's, is not used again.
    """

    pid: int
    go: int
    streams: dict[int, bytes] = field(default_factory=dict)

    def reap(self) -> bool:
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)  # a stopped process handles other signals only after SIGCONT

    def has_unread_errors(self) -> bool:
        errors = list(self.streams)[-1]
        return bool(_num_waiting(errors) or self.streams[errors])

    def take(self, descriptor: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """Read a stream; return its complete lines (with `last` also the rest), and whether more may follow."""
        chunk = os.read(descriptor, _num_waiting(descriptor) if last else 65536)
        *lines, rest = (self.streams[descriptor] + chunk).split(b"\n")
        if (last or not chunk) and rest:
            lines, rest = [*lines, rest], b""
        self.streams[descriptor] = rest
        errors = descriptor == list(self.streams)[-1]
        return [Line(self, errors, line.decode(errors="replace")) for line in lines], bool(chunk)

    def release(self, variables: Mapping[str, str]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.go, json.dumps(variables).encode())
        os.close(self.go)
        self.go = -1


def _num_waiting(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def import_once() -> None:
    """Import, before the fork, modules that every worker would otherwise import itself."""
    for name in IMPORTED_ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@contextlib.contextmanager
def fork_workers(target: Target, args: Sequence[str], variables: Sequence[Mapping[str, str]]) -> Iterator[list[Child]]:
    """Yield forked processes that wait for `release`, one per environment in `variables`; at the end kill them all."""
    import_once()
    reraise_pending()
    flush_everything()
    fill_standard_descriptors()
    workers: list[Child] = []
    guardian = CleanupProcess()
    try:
        for own in variables:
            with defer_signals():
                workers.append(_fork(target, args, own, workers, guardian))
                guardian.watch(workers[-1].pid)
        yield workers
    finally:
        with defer_signals():
            for worker in workers:
                if worker.code is None:
                    worker.signal(signal.SIGKILL)
            end_groups({worker.pid for worker in workers})
            for worker in workers:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(worker.pid, 0)
                for descriptor in [*worker.streams, *([worker.go] if worker.go >= 0 else [])]:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            guardian.close()


def _fork(
    target: Target,
    args: Sequence[str],
    variables: Mapping[str, str],
    earlier: Sequence[Child],
    guardian: CleanupProcess,
) -> Child:
    """Fork one worker, with signals blocked; the child closes its copies of `earlier` workers' pipes."""
    go_read, go_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in (go_read, out_write, err_write):
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the child calls it too; either may be first
            os.setpgid(pid, pid)
        return Child(int(variables[env.RANK]), pid, go_write, {out_read: b"", err_read: b""})
    code = 70
    try:
        try:
            pipes = [one for worker in earlier for one in (worker.go, *worker.streams)]
            for descriptor in (go_write, out_read, err_read, *pipes):
                os.close(descriptor)
            guardian.forget_in_child()
            os.setpgid(0, 0)
            if not die_with_parent(parent):
                os._exit(70)
            leave_clean_up_to_parent()
            own_standard_streams(out_write, err_write)
            with os.fdopen(go_read, "rb") as given:
                further = given.read()
            if not further:
                os._exit(70)
            code = _become_worker(target, args, {**variables, **json.loads(further)})
        except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happened
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            flush_everything()
    finally:  # outermost, so that Ctrl-C above cannot return from this function in the child
        if code < 0:
            end_by_signal(-code)
        os._exit(code & 0xFF)


_left: list[object] = []
"""The script's globals, or its exception, kept so that no object is destroyed before the process exits: the destructor
of a gloo group holds the GIL while it waits for a thread that may itself need the GIL (torch 2.13)."""


def _keep_destroyed_groups() -> None:
    """Keep references to process groups that the script destroys, so that no destructor runs (see `_left`)."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def keep_and_destroy(group: dist.ProcessGroup | None = None) -> None:
        _left.append(group or dist.group.WORLD)
        destroy(group)

    dist.destroy_process_group = keep_and_destroy


def _become_worker(target: Target, args: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the script or function in a forked child; return its exit code, or minus the signal that ended it."""
    import runpy

    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(variables)
    torch.set_num_threads(int(variables[env.OMP_NUM_THREADS]))
    _keep_destroyed_groups()
    code = 0
    try:
        default_signals()  # from here on Ctrl-C ends the worker like any program
        if callable(target):
            target()
        else:
            _seed_from_system()
            sys.argv = [str(target), *args]
            sys.path.insert(0, str(Path(target).resolve().parent))
            _left.append(runpy.run_path(str(target), run_name="__main__"))
    except BaseException as error:  # noqa: BLE001 - the script's own error
        _left.append(error)
        code = _code_of(error)
    if code == 0 and not callable(target):
        _warn_if_schedule_unused(target, variables)
    end_as_python_does()
    return code


def _code_of(error: BaseException) -> int:
    """Print the error that ended the script, as Python does; return the exit code, or minus the signal's number."""
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
            return 1
        return (error.code or 0) & 0xFF
    sys.last_value = known = translate_error(error)
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT  # the launcher prints one line for all workers
    if isinstance(known, PartreduceError):
        return print_error(known)
    trace = error.__traceback__  # without the launcher's frames, unless there are no others
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    try:
        error.with_traceback(trace or error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)  # which the script may have replaced
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
    return 1


def _warn_if_schedule_unused(script: str | Path, variables: Mapping[str, str]) -> None:
    """If the script was started with a schedule and ended without following it, print the lines that it lacks."""
    from partreduce.runtime.transport.rendezvous import has_joined

    schedule = variables.get(env.SCHEDULE)
    if schedule is None or has_joined() or variables[env.RANK] != "0" or variables[env.WORLD_SIZE] == "1":
        return
    sys.stderr.write(
        f"partreduce: {script} ended without a DistributedOptimizer, so nothing followed {schedule}; it needs\n"
        "    import partreduce\n"
        "    data = partreduce.shard_dataset(data)  # this worker's part\n"
        f'    optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ["{env.SCHEDULE}"])\n'
    )


def fill_standard_descriptors() -> None:
    """Open the null device for each closed standard stream, so that no pipe gets a file descriptor from 0 to 2."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def own_standard_streams(output: int, errors: int) -> None:
    """Make the pipes `output` and `errors` this process's standard output and error; make standard input empty."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, number)
    for descriptor in {nothing, output, errors} - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - as above


def _seed_from_system() -> None:
    """Give torch's and NumPy's generators new random seeds, as an import does; the fork has done so with Python's."""
    import torch

    torch.default_generator.seed()
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()


def leave_clean_up_to_parent() -> None:
    """Drop, in a forked worker, the parent's pending cleanup: of temporary folders, child processes and open files."""
    gc.freeze()  # so that gc.get_objects() later lists only the worker's own objects
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001 - no public way
        finalizer.atexit = False
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes._children.clear()  # noqa: SLF001 - as multiprocessing does in its own


def end_as_python_does() -> None:
    """Wait for the script's threads and pools, or for Ctrl-C; then run its exit functions and close open files."""
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does for its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - one of them notifies the other workers
    left = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]  # `isinstance` asks proxies
    for file in sorted(left, key=_outermost_first):
        with contextlib.suppress(Exception):
            if file.fileno() > 2:  # standard streams are flushed last
                file.close()


def _outermost_first(file: io.IOBase) -> tuple[bool, bool, bool]:
    """Return a sort key that closes wrappers before what they wrap: text, then compressed file, buffer, raw file."""
    is_buffer = isinstance(file, io.BufferedWriter | io.BufferedRandom)
    return isinstance(file, io.RawIOBase), is_buffer, not isinstance(file, io.TextIOBase)


def flush_everything() -> None:
    """Flush the output buffers of C and Python: before a fork, which would copy them, or before `os._exit`."""
    ctypes.CDLL(None).fflush(None)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


Explain = Callable[[BaseException], PartreduceError | None]
_explanations: list[weakref.WeakMethod[Explain]] = []


def add_error_translator(explain: Explain) -> None:
    """Register a method that returns a clearer PartreduceError for an error that ends a script, or None.

    It is registered as long as its object lives.
    """
    _explanations.append(weakref.WeakMethod(explain, _explanations.remove))


def translate_error(error: BaseException) -> BaseException:
    """Return the PartreduceError by which a registered function explains `error`; else `error` itself."""
    methods = [method for reference in _explanations if (method := reference()) is not None]
    return next((known for explain in methods if (known := explain(error)) is not None), error)


def print_error(error: PartreduceError) -> int:
    """Print an error as one line; return its exit code."""
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return error.exit_code


def install_excepthook(*, own_process: bool = True) -> None:
    """Print a PartreduceError that ends the script as one line, by a hook, unless the program has its own excepthook.

    Nothing is installed in an interactive session, or if workers are threads of one process (not `own_process`).
    """
    global _before
    is_typed = hasattr(sys, "ps1") or sys.flags.interactive
    if own_process and not is_typed and _is_default(sys.excepthook):
        _before, sys.excepthook = sys.excepthook, _show
        if threading.excepthook is threading.__excepthook__:
            threading.excepthook = _show_of_thread


_before = sys.__excepthook__  # handles all other errors


def _is_default(hook: Callable[..., object]) -> bool:
    """Return whether an excepthook is Python's own, or torch's wrapper of it, which adds the rank to messages."""
    while getattr(hook, "__module__", "") == "torch.distributed.distributed_c10d":
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook", print)
    return hook is sys.__excepthook__


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    known = translate_error(error)
    if not isinstance(known, PartreduceError):
        _before(kind, error, trace)
        return
    with contextlib.redirect_stderr(sys.__stderr__ or sys.stderr):  # torch's hook drops its buffer on SystemExit
        raise SystemExit(print_error(known))


def _show_of_thread(ended: threading.ExceptHookArgs) -> None:
    if isinstance(ended.exc_value, PartreduceError):
        print_error(ended.exc_value)
    else:
        threading.__excepthook__(ended)
