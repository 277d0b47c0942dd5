"""Call CP-SAT with a time limit that is kept, a seed, and no output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partreduce.topo.errors import MissingDependencyError
from partreduce.topo.extras import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model


class Solution(NamedTuple):
    """The best values found of the asked variables, none without a solution, and the solver's deterministic seconds."""

    values: tuple[int, ...]
    work: float


def new_model() -> cp_model.CpModel:
    """An empty model.

    Raises:
        MissingDependencyError: OR-Tools is not installed, or cannot be loaded.
    """
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError:
        raise missing(["ortools"], "synthesis") from None
    except ImportError as error:
        # Other packages that bring the same solver libraries, such as cvxpy, can keep OR-Tools' own from loading.
        raise MissingDependencyError(
            f"synthesis needs OR-Tools, which is installed but does not load ({error}); import ortools before other "
            "packages with solvers"
        ) from None
    return cp_model.CpModel()


def solve(
    model: cp_model.CpModel,
    variables: Sequence[cp_model.IntVar],
    *,
    time_limit: float,
    max_deterministic_time: float,
    seed: int = 0,
) -> Solution:
    """Solve by one worker, so that within the deterministic time the solution depends on the seed alone."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = max(0.01, time_limit)
    solver.parameters.max_deterministic_time = max_deterministic_time
    solver.parameters.cp_model_presolve = False  # it takes longer than the search where there are thousands of groups
    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(model.validate())
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    values = tuple(int(solver.value(variable)) for variable in variables) if is_solved else ()
    return Solution(values, float(solver.response_proto.deterministic_time))
