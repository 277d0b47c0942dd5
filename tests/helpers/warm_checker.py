"""The checker's program, each time in a new process that is forked from one with the checker imported.

`run_checker(certificate, schedule)` does what `python -I -S verify/checker certificate schedule` does in an empty
environment, from the first line of `__main__.py` to the exit status. The process is forked from one that was started in
just that way and has only imported the checker.
"""

import atexit
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


class _Starter:
    """The process that forks the others, started on first use; it ends with this one."""

    def __init__(self):
        self._process, self._folder = None, None

    def run(self, arguments, memory, timeout):
        if self._process is None:
            self._start()
        output = [f"{self._folder.name}/{name}" for name in ("stdout", "stderr")]
        self._process.stdin.write(json.dumps([*output, memory, [str(a) for a in arguments]]).encode() + b"\n")
        answers = select.poll()  # a suite may have more descriptors open than select() takes
        answers.register(self._process.stdout, select.POLLIN)
        if not answers.poll(1000 * timeout):
            self.close()
            raise subprocess.TimeoutExpired(["checker", *arguments], timeout)
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(["checker", *arguments], code, *(Path(path).read_text() for path in output))

    def _start(self):
        from partreduce.verify import checker

        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-I", "-S", __file__, str(Path(checker.__file__).parent)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self._process = subprocess.Popen(command, env={}, cwd=os.sep, start_new_session=True, **pipes)
        atexit.register(self.close)

    def close(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # it is not waited for yet, so that the number is its own
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None
            self._folder.cleanup()


_STARTER = _Starter()


def run_checker(*arguments, memory=None, timeout=60):
    """Run the program to its end, like subprocess.run with captured text; `memory` limits its address space."""
    return _STARTER.run(arguments, memory, timeout)


def _serve():
    """Fork once for each line of requests; return the arguments in the forked process."""
    while line := sys.stdin.buffer.readline():
        *output, memory, arguments = json.loads(line)
        pid = os.fork()
        if not pid:
            nothing = os.open(os.devnull, os.O_RDONLY)
            written = [os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY) for path in output]
            for number, descriptor in enumerate([nothing, *written]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            if memory is not None:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            return arguments
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    sys.exit()


def main():
    program = sys.argv[1]
    runpy.run_path(program, run_name="imported")
    sys.argv[:] = [program, *_serve()]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
