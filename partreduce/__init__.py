"""partreduce: design, prove and run the averaging schedule of a distributed training job.

Everything public is a name of this package and is imported on first use, so that `import partreduce` costs nothing:

    import partreduce

    schedule = partreduce.design("4x4", build="prague-figure-10")
    assert partreduce.verify(schedule).verdict == "proved"
    partreduce.write_schedule("schedule.json", schedule)
    optimizer = partreduce.DistributedOptimizer(optimizer, model, "schedule.json")

The names stand in `__init__.pyi`, for type checkers and for the import on first use. Four modules hold what few
scripts name: `strategies` (what a schedule says), `errors`, `files` and `types` (what plans and proofs are made of).
"""

from __future__ import annotations

import os

from lazy_loader import attach_stub

__version__ = "0.1.0"
_import, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        from partreduce.topo.extras import EXTRAS, missing

        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise missing([library], f"partreduce.{name}") from None


# A worker of torchrun: what is refused before the optimizer is made, too. The name is `runtime.environment.RUN_ID`.
if "TORCHELASTIC_RUN_ID" in os.environ:
    from partreduce.runtime.launcher.processes import install_excepthook

    install_excepthook()
