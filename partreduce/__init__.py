"""partreduce: design, prove and run the averaging schedule of a distributed training job.

Everything public is a name of this package and is imported on first use, so that `import partreduce` costs nothing:

    import partreduce

    schedule = partreduce.design("4x4", build="prague-figure-10")
    assert partreduce.verify(schedule).verdict == "proved"
    partreduce.write_schedule("schedule.json", schedule)
    optimizer = partreduce.DistributedOptimizer(optimizer, model, "schedule.json")

`__init__.pyi` lists the names, for type checkers and for the import on first use. Four modules hold names that few
scripts need: `strategies` (the parts of a schedule), `errors`, `files` and `types` (types of arguments and results).
"""

from __future__ import annotations

import os
import sys

from lazy_loader import attach_stub

__version__ = "0.1.0"
_import, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    _show_errors_in_one_line()
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        from partreduce.topo.extras import EXTRAS, missing

        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise missing([library], f"partreduce.{name}") from None


def _show_errors_in_one_line() -> None:
    """Print uncaught errors in one line in workers, even before an optimizer exists.

    A process counts as a worker if torchrun started it, or if it is a member of a process group.
    """
    group = sys.modules.get("torch.distributed")
    in_group = group is not None and getattr(group, "is_initialized", bool)()
    if in_group or "TORCHELASTIC_RUN_ID" in os.environ:  # equals `runtime.environment.RUN_ID`
        from partreduce.runtime.launcher.processes import install_excepthook

        install_excepthook()


_show_errors_in_one_line()
