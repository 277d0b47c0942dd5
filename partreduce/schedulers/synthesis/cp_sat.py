"""One way to call CP-SAT: a time limit that is kept, a seed, four statuses, nothing printed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.errors import MissingFeatureError
from partreduce.topo.extras import missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortools.sat.python import cp_model


@dataclass(frozen=True, slots=True)
class Outcome:
    """A status, and the values of the asked variables (empty without a solution).

    `bound` is what the objective cannot pass, `work` what the solver counted, in its deterministic seconds.
    """

    status: Status
    values: tuple[int, ...] = ()
    work: float = 0.0
    bound: float = 0.0


def new_model() -> cp_model.CpModel:
    """An empty model.

    Raises:
        MissingFeatureError: OR-Tools is not installed, or cannot be loaded.
    """
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError:
        raise missing(["ortools"], "synthesis") from None
    except ImportError as error:
        # Other packages that bring the same solver libraries, such as cvxpy, can keep OR-Tools' own from loading.
        raise MissingFeatureError(
            f"synthesis needs OR-Tools, which is installed but does not load ({error}); import ortools before other "
            "packages with solvers"
        ) from None
    return cp_model.CpModel()


def solve(
    model: cp_model.CpModel,
    variables: Sequence[cp_model.IntVar],
    *,
    time_limit: float,
    seed: int = 0,
    num_workers: int = 1,
    max_deterministic_time: float | None = None,
    presolve: bool = True,
) -> Outcome:
    """Solve. With one worker and a deterministic time the outcome depends on the seed alone.

    An "infeasible" is only passed on after a second run with symmetry detection off agrees (symmetry code has returned
    wrong answers before); without that confirmation the status is unknown.
    """
    start = time.monotonic()
    parameters: dict[str, float] = {"random_seed": seed, "num_workers": num_workers, "cp_model_presolve": presolve}
    if max_deterministic_time is not None:
        parameters["max_deterministic_time"] = max_deterministic_time
    outcome = _run(model, variables, {**parameters, "max_time_in_seconds": max(0.01, time_limit)})
    if outcome.status is not Status.INFEASIBLE:
        return outcome
    left = max(0.05, time_limit - (time.monotonic() - start))
    again = _run(model, variables, {**parameters, "max_time_in_seconds": left, "symmetry_level": 0})
    return replace(again, work=outcome.work + again.work)


def _run(
    model: cp_model.CpModel,
    variables: Sequence[cp_model.IntVar],
    parameters: Mapping[str, float],
) -> Outcome:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)

    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(model.validate())
    named = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
        cp_model.UNKNOWN: Status.UNKNOWN,
    }[status]
    work = float(solver.response_proto.deterministic_time)
    bound = float(solver.best_objective_bound)
    if named in {Status.INFEASIBLE, Status.UNKNOWN}:
        return Outcome(named, work=work, bound=bound)
    values = tuple(int(solver.value(variable)) for variable in variables)
    return Outcome(named, values, work, bound)
