"""Prove claims about schedules, write certificates that a third party can check, and run the checker.

The package is callable: `partreduce.verify(schedule)` proves or refutes every claim about a schedule.
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

if __name__ != "partreduce.verify":  # the folder's plain name would make a second copy of every class
    raise ImportError("this folder is the package partreduce.verify; import it by that name")


class _CallablePackage(ModuleType):
    """Module type that makes the package `partreduce.verify` callable as a function.

    Python binds `partreduce.verify` to the package when any of its modules is imported, which would replace a function
    of that name; the package itself is therefore callable.
    """

    def __call__(self, schedule: Schedule) -> Proof:
        """Prove or refute every claim about a schedule; see `verify.prove`.

        Args:
            schedule: any Schedule.

        Returns:
            A Proof, with its `verdict`, `claims` and `certificate`.

        Raises:
            ScheduleError: there is nothing to prove about this kind of strategy.
        """
        return prove(schedule)


sys.modules[__name__].__class__ = _CallablePackage

if TYPE_CHECKING:
    verify = prove
else:
    verify = sys.modules[__name__]
