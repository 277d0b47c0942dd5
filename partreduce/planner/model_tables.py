"""A model's tables, and how many of their rows a step touches: from a user's file that builds the model.

torch is imported by the functions, since nothing else of the planner needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from partreduce.planner.table_prices import IN_ORDER, Table
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, PartreduceError
from partreduce.topo.strategies.payload import Gradient, Placement, TablePlacement
from partreduce.topo.timing.tables import RowAccess
from partreduce.user_function import function_of, one_line

if TYPE_CHECKING:
    import torch


STEPS = 20
"""Steps of all workers that are measured at most."""

UNKNOWN = (
    "nobody said how many of its rows a step touches: let build() return (model, batches), or say "
    "--set touched=TABLE:0.8%"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The tables of a model, the bytes of everything else that is trained, and from how many steps α was measured."""

    tables: tuple[Table, ...]
    dense_bytes: int
    num_steps: int = 0


def read_model(text: str, cluster: Cluster, *, touched: Mapping[str, RowAccess] | None = None) -> ModelFacts:
    """Call a function of a user's file, and look at the model that it returns.

    Args:
        text: `FILE.py:NAME`. The function takes no arguments and returns a model, or (model, batches): of each batch
            the model's forward() takes the leading parts. Batches are dealt to the workers in turn.
        cluster: the workers that share a step.
        touched: what is known of tables already, by the names of their parameters; those are not measured.

    Raises:
        FileError: there is no such file.
        InputError: the file or its function fails, or what it returns is no model.
    """
    import torch

    from partreduce.runtime.sharding.touched import OtherUses

    built = _call(text)
    model, batches = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"--model {text}: returned what is no model ({type(model).__name__}); it returns one, or (model, batches)"
        )
    known, num_steps, uses = dict(touched or {}), 0, OtherUses(model)
    _check_unknown(known, model)
    if batches is not None:
        try:
            with uses:
                measured, num_steps = measure_touched(model, batches, cluster)
        except PartreduceError as error:
            raise InputError(f"--model {text}: {error}") from None
        known = measured | known
    tables, dense_bytes = tables_of(model, known, other_uses=uses.found)
    return ModelFacts(tables=tables, dense_bytes=dense_bytes, num_steps=num_steps)


def tables_of(
    model: torch.nn.Module,
    touched: Mapping[str, RowAccess],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    other_uses: Mapping[str, str] | None = None,
) -> tuple[tuple[Table, ...], int]:
    """The tables that embeddings look up and that are trained, and the bytes of all other parameters that are.

    Args:
        model: whose tables.
        touched: what is known of them, by the names of their parameters.
        optimizer: that trains them, if it is known: some look at whole tensors.
        other_uses: by table, the function that takes its weight where it is not looked up, see `OtherUses`.

    Raises:
        InputError: a table with a sparse gradient that may go no way but dense.
    """
    from partreduce.runtime.sharding.placement import embeddings_of

    found = {name: parts for name, parts in embeddings_of(model).items() if parts[0].requires_grad}
    tables = []
    for name, (parameter, modules) in found.items():
        gradient = Gradient.SPARSE if any(module.sparse for module in modules) else Gradient.DENSE
        shares = touched.get(name)
        ways, because = possible_ways(model, name, optimizer) if shares is not None else ((Placement.DENSE,), UNKNOWN)
        if (use := (other_uses or {}).get(name)) is not None:
            ways, because = (Placement.DENSE,), f"forward() hands its weight to {use}, too, which needs all rows"
        if gradient is Gradient.SPARSE and ways == (Placement.DENSE,):
            raise InputError(f"table {name!r}: has a sparse gradient, which way dense does not know; {because}")
        tables.append(
            Table(
                parameter=name,
                rows=parameter.shape[0],
                columns=parameter.shape[1],
                touched=shares,
                gradient=gradient,
                element_bytes=parameter.element_size(),
                ways=ways,
                because=because,
            )
        )
    apart = {parameter for parameter, _ in found.values()}
    dense = (p for p in model.parameters() if p.requires_grad and p not in apart)
    return tuple(tables), sum(p.numel() * p.element_size() for p in dense)


def possible_ways(
    model: torch.nn.Module, name: str, optimizer: torch.optim.Optimizer | None = None
) -> tuple[tuple[Placement, ...], str]:
    """The ways that the run-time lets a table go, and what it says against the first of the others.

    A table with `max_norm` goes densely only if it cannot be sharded: each worker would shorten the rows that it looks
    up, and the copies would part.
    """
    from partreduce.runtime.sharding.placement import check_route, embeddings_of, looks_at_whole_tensors

    parameter, modules = embeddings_of(model)[name]
    gradient = Gradient.SPARSE if modules[0].sparse else Gradient.DENSE
    ways, against = [Placement.DENSE], ""
    for way in IN_ORDER[1:]:
        rows, columns = parameter.shape
        route = TablePlacement(parameter=name, rows=rows, columns=columns, way=way, gradient=gradient)
        try:
            check_route(model, route, parameter, modules)
        except InputError as error:
            against = against or str(error).removeprefix(f"parameter {name!r}: ")
        else:
            ways.append(way)
    if Placement.SHARDED in ways and optimizer is not None and (kind := looks_at_whole_tensors(optimizer, parameter)):
        ways.remove(Placement.SHARDED)
        against = f"{kind} looks at whole tensors, of which a worker would have some rows"
    if Placement.SHARDED in ways and any(module.max_norm is not None for module in modules):
        ways.remove(Placement.DENSE)
        against = "max_norm shortens rows where they are looked up, so that copies would part"
    return tuple(ways), against


def measure_touched(
    model: torch.nn.Module, batches: Iterable[Any], cluster: Cluster, *, num_steps: int = STEPS
) -> tuple[dict[str, RowAccess], int]:
    """What steps touch of each table if batches are dealt to the workers in turn; from how many steps.

    Without gradients, in eval mode, on whatever device the model is. O(batches · forward).

    Raises:
        InputError: too few batches for one step, batches that cannot be iterated over, or one that forward() does not
            take.
    """
    from partreduce.runtime.sharding.touched import looking, shares_of, sizes_of

    num_workers = cluster.num_workers
    with looking(model, _forward) as look:
        rows = [look(batch) for batch in islice(_iterated(batches), num_steps * num_workers)]
    if len(rows) < num_workers:
        raise InputError(
            f"gave {len(rows)} batches, and a step of {num_workers} workers takes one for each; give more of them, or "
            "a smaller cluster"
        )
    steps = [rows[first : first + num_workers] for first in range(0, len(rows) - num_workers + 1, num_workers)]
    return shares_of(steps, sizes_of(model), cluster), len(steps)


def _iterated(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches; what the user's own loader raises is one line."""
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(f"gave batches that are no iterable ({type(batches).__name__}); return (model, loader)")
    iterator = iter(batches)
    for number in count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise InputError(f"batch {number} raised {one_line(error)}") from error
        yield batch


def _forward(model: torch.nn.Module, batch: object) -> None:
    """Call the model with the leading parts of a batch that its forward() has arguments for."""
    from partreduce.runtime.sharding.touched import inputs_of

    parts, keywords = inputs_of(model, batch)
    try:
        model(*parts, **keywords)
    except PartreduceError:
        raise
    except Exception as error:
        raise InputError(f"forward() of a batch raised {one_line(error)}") from error


def _call(text: str) -> Any:  # noqa: ANN401 - what a user's function returns
    """What the function of `FILE.py:NAME` returns."""
    build = function_of(text, "--model")
    try:
        return build()
    except PartreduceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"--model {text}: raised {one_line(error)}") from error


def _check_unknown(touched: Mapping[str, RowAccess], model: torch.nn.Module) -> None:
    from partreduce.runtime.sharding.touched import sizes_of

    known = sizes_of(model)
    for name in touched:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"--set touched: names {name!r}, which no embedding of the model has; known: {listed}")
