"""`partreduce generator`: the service that forms groups for schedules of the kind `dynamic_groups`."""

import contextlib
import signal
from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands.options import panel
from partreduce.console import console
from partreduce.runtime.generator.log import LOG_ENDINGS
from partreduce.runtime.generator.messages import key_in, new_key, read_key, write_key
from partreduce.runtime.generator.process import Launcher, belongs_to
from partreduce.runtime.generator.service import GeneratorService
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.document.writer import write_file
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.dynamic_groups import DynamicGroups

own = panel()


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule of the kind dynamic_groups.")],
    *,
    keys: Annotated[Path, own("The job's key file; made (mode 0600) if it is not there. - reads standard input.")],
    address: Annotated[str, own("Where to listen; * takes a free port.")] = "tcp://127.0.0.1:*",
    log: Annotated[Path | None, own("Write-ahead log; a restart continues from it.")] = None,
    lease: Annotated[
        float | None,
        own("Seconds of silence after which a worker counts as failed (default: 3/4 of the run's timeout).", min=0.1),
    ] = None,
    address_file: Annotated[Path | None, own("Write the address here once it is open.")] = None,
    worker_keys: Annotated[Path | None, own("Write the key here, too, for the workers (mode 0600).")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Serve the groups of a `dynamic_groups` schedule until all workers have ended; `partreduce run` starts it."""
    # `--parent PID` ends it with process PID, which started it and talks to it, and then removes its files: see
    # generator/process.py.
    files = [path for path in (log, address_file) if path is not None]
    files += [] if log is None else [log.with_name(f"{log.name}{end}") for end in LOG_ENDINGS]
    with contextlib.ExitStack() as stack:
        launcher = Launcher()
        if parent is not None:
            stack.enter_context(belongs_to(parent, files))
        loaded = load_schedule(schedule)
        if not isinstance(loaded.strategy, DynamicGroups):
            raise InputError(
                f"{schedule}: has strategy {loaded.strategy.kind!r}; only 'dynamic_groups' needs the generator"
            )
        if str(keys) != "-" and not keys.exists():
            write_key(keys, new_key())
        key = key_in(launcher.first_line(), "standard input") if str(keys) == "-" else read_key(keys)
        if worker_keys is not None:
            write_key(worker_keys, key)
        setting = GeneratorSetting.of(loaded.strategy, loaded.cluster)
        service = GeneratorService(
            setting, key, address=address, log=log, lease=lease, job=schedule_sha256(loaded),
            failed=tuple if parent is None else launcher.failed, on_evicted=launcher.evicted,
        )  # fmt: skip
        stack.callback(service.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        if address_file is not None:
            write_file(address_file, service.address.encode())
        console().print(
            f"listening at {service.address}, {loaded.num_workers} workers, generation {service.state.generation}"
        )
        service.run()
    return 0
