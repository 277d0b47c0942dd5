"""What the referee uses of partreduce in one process: building, reading, proving, simulating, running command lines."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import partreduce
from partreduce.__main__ import main as partreduce_main
from partreduce.runtime import codecs
from partreduce.runtime.codecs import Coding, decoded, encoded
from partreduce.strategies import Codec, Transport
from partreduce.topo import codec_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_SECONDS = 300
"""Of one command line."""
QUIET = {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def load_commands() -> None:
    """Import what commands import, once, before children are forked."""
    for name in ("design", "verify", "show", "simulate"):
        import_module(f"partreduce.commands.{name}")


def catalogue() -> list[str]:
    return partreduce.catalogue()


def build(cluster: str, name: str, parameters: dict[str, Any]) -> partreduce.Schedule:
    """An entry of the catalogue on a cluster; raises a PartreduceError where there is none."""
    return partreduce.design(cluster, build=name, **parameters)


def parse(document: dict[str, Any]) -> partreduce.Schedule:
    """A schedule as it stands in a file."""
    return partreduce.files.parse_schedule(json.dumps(document))


def write(path: str, schedule: partreduce.Schedule) -> None:
    partreduce.write_schedule(path, schedule)


def prove(schedule: partreduce.Schedule) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `verify --json` says of claims, and the certificate."""
    proof = partreduce.verify(schedule)
    return proof.to_json(), dict(proof.certificate)


def hardware(**settings: Any) -> partreduce.Hardware:  # noqa: ANN401 - what Hardware takes
    slow = partreduce.Link.of_bandwidth(1e9, 1e-5)
    fast = partreduce.Link.of_bandwidth(1e10, 1e-6)
    return partreduce.Hardware(**{"inside": fast, "nic": slow, "compute": 0.05, "model_bytes": 20_000_000} | settings)


def simulate(
    schedule: partreduce.Schedule, place: partreduce.Hardware, rounds: int, touched: dict[str, list[float]]
) -> partreduce.types.Timeline:
    return partreduce.simulate(schedule, place, num_rounds=rounds, seed=3, touched=_shares(schedule, touched))


def predict(
    schedule: partreduce.Schedule, place: partreduce.Hardware, rounds: int, touched: dict[str, list[float]]
) -> partreduce.types.Prediction:
    return partreduce.predict(schedule, place, num_rounds=rounds, seed=3, touched=_shares(schedule, touched))


def _shares(schedule: partreduce.Schedule, touched: dict[str, list[float]]) -> dict[str, Any] | None:
    """Where a schedule has tables, how much of them a step touches."""
    if not schedule.strategy.payload.tables:
        return None
    return {name: partreduce.types.RowAccess(*shares) for name, shares in touched.items()}


def code(codec: str, block: int, values: Any) -> tuple[bytes, Any]:  # noqa: ANN401 - an array
    """The bytes on the wire, and the numbers that come out of them."""
    import torch

    transport = Coding(Transport(codec=Codec(codec), **({"block": block} if codec.startswith("int") else {})))
    written = encoded(torch.from_numpy(values.copy()), transport, "referee")
    read = decoded(written, len(values), transport.transport.codec, transport.transport.block)
    return written.view(torch.uint8).numpy().tobytes(), read.float().numpy()


def code_bytes(codec: str, block: int, count: int) -> int:
    transport = Transport(codec=Codec(codec), **({"block": block} if codec.startswith("int") else {}))
    return codecs.code_bytes(count, Coding(transport))


def row_bytes(codec: str, columns: int) -> int:
    """Of a table's row."""
    return codec_numbers.row_bytes(codec, columns)


def error_line(error: Exception) -> str:
    """An error in one line, without what differs from run to run."""
    return _steady(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def is_own_error(error: Exception) -> bool:
    """Whether it is one of the package's own errors, rather than a bug."""
    return isinstance(error, partreduce.PartreduceError)


def command_line(arguments: list[str]) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command, in a child of this process."""
    return _in_child(lambda: partreduce_main(arguments))


def python_call(text: str) -> tuple[int, str, str]:
    """The same of a Python expression; an error is its type and message, on standard error."""

    def call() -> int:
        import torch

        try:
            value = eval(text, {"partreduce": partreduce, "torch": torch})
        except Exception as error:  # noqa: BLE001 - which one it is, is recorded
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return 1
        sys.stdout.write(f"{value}\n")
        return 0

    return _in_child(call)


@contextmanager
def folder_with(files: dict[str, Any]) -> Iterator[Path]:
    """A folder of its own that holds files, texts or JSON, as the present one."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="referee-") as name:
        for file, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (Path(name) / file).write_text(text, encoding="utf-8", newline="")
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(here)


def _in_child(action: Any) -> tuple[int, str, str]:  # noqa: ANN401 - () -> int
    """Fork, and keep what the child writes apart."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            code = 99
            try:
                os.environ.update(QUIET)
                signal.alarm(MOST_SECONDS)
                for file, number in ((out, 1), (err, 2)):
                    os.dup2(file.fileno(), number)
                with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is wanted
                    os.dup2(nothing.fileno(), 0)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                code = action()
                sys.stdout.flush()
                sys.stderr.flush()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(_steady(file.read().decode("utf-8", "replace")))
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _steady(text: str) -> str:
    """Without names of temporary files, addresses and checkouts."""
    text = text.replace(str(Path(partreduce.__file__).resolve().parents[1]), "CHECKOUT")
    text = re.sub(r"/tmp/[^\s:;,'\")]+", "TMP", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)
