"""Proofs about schedules, the certificates that let a stranger check them, and the checker.

The package can be called: `partreduce.verify(schedule)` proves or refutes every claim about a schedule.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from partreduce.verify.base import Claim as Claim
from partreduce.verify.base import Proof as Proof
from partreduce.verify.base import Status as Status
from partreduce.verify.prove import prove as prove

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule

if __name__ != "partreduce.verify":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.verify; import it by that name")


class _CallablePackage(ModuleType):
    """This package, which is also the public function of its name.

    Python binds `partreduce.verify` to the package as soon as any of its modules is imported, so a function of that
    name would be replaced; the package itself therefore answers the call.
    """

    def __call__(self, schedule: Schedule) -> Proof:
        """Prove or refute every claim about a schedule; see `verify.prove`.

        Args:
            schedule: any Schedule.

        Returns:
            A Proof: its `verdict`, `claims` and `certificate`.

        Raises:
            ScheduleError: the strategy has neither phases nor conditions that could be checked.
        """
        return prove(schedule)


sys.modules[__name__].__class__ = _CallablePackage

if TYPE_CHECKING:
    verify = prove
else:
    verify = sys.modules[__name__]
