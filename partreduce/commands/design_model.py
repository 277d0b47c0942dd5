"""Read the model of `partreduce design --model`: its embedding tables, and the rows of them that a step touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch

from partreduce.planner.parallelize import kind_of, tables_of
from partreduce.planner.tables import ModelFacts
from partreduce.runtime.sharding.row_access import OtherUses, Rows, inputs_of, record_lookups, shares_of, sizes_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, PartreduceError
from partreduce.topo.timing.tables import RowAccess
from partreduce.user_function import function_of, one_line

STEPS = 20
"""Most steps for which touched rows are counted."""


def read_model(text: str, cluster: Cluster, *, touched: Mapping[str, RowAccess] | None = None) -> ModelFacts:
    """Inspect the model that a user's function returns, alone or in a tuple: (model, [optimizer], [batches]).

    Args:
        text: the function, as `FILE.py:NAME`.
        cluster: the workers, to which batches are dealt in turn.
        touched: known fractions of rows that a step touches, by the table's parameter name; they replace measured ones.

    Returns:
        The tables, the bytes of all other trained parameters, the number of steps measured, and the optimizer's kind.

    Raises:
        FileError: the file does not exist.
        InputError: the file or its function fails, or its result is no model.
    """
    try:
        built = function_of(text, "--model")()
    except PartreduceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"--model {text}: raised {one_line(error)}") from error
    model, *rest = built if isinstance(built, tuple) and 1 < len(built) <= 3 else (built,)
    optimizer = rest.pop(0) if rest and isinstance(rest[0], torch.optim.Optimizer) else None
    batches = rest.pop(0) if rest else None
    if not isinstance(model, torch.nn.Module) or rest:
        found = type(built if rest else model).__name__
        raise InputError(f"--model {text}: returned what is no model ({found}); it returns one, or (model, batches)")
    known, num_steps, uses, sizes = dict(touched or {}), 0, OtherUses(model), sizes_of(model)
    if unknown := [name for name in known if name not in sizes]:
        listed = ", ".join(sizes) or "none"
        raise InputError(f"--set touched: names {unknown[0]!r}, which no embedding of the model has; known: {listed}")
    if batches is not None:
        try:
            with uses:
                measured, num_steps = measure_touched(model, batches, cluster)
        except PartreduceError as error:
            raise InputError(f"--model {text}: {error}") from None
        known = measured | known
    tables, dense_bytes = tables_of(model, known, optimizer, other_uses=uses.found)
    kind = None if optimizer is None else kind_of(optimizer)
    return ModelFacts(tables=tables, dense_bytes=dense_bytes, num_steps=num_steps, optimizer=kind)


def measure_touched(
    model: torch.nn.Module, batches: Iterable[Any], cluster: Cluster
) -> tuple[dict[str, RowAccess], int]:
    """Return the fractions of rows that steps touch, by the table's parameter name, and the number of steps measured.

    The model runs without gradients, in eval mode, on its own device.

    Args:
        model: the model whose embedding tables are counted.
        batches: at least one batch for each worker; they are dealt to the workers in turn, for `STEPS` steps at most.
        cluster: the workers and their nodes.

    Raises:
        InputError: too few batches for one step, batches that are not iterable, or a batch that forward() does not
            take.
    """
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(f"gave batches that are no iterable ({type(batches).__name__}); return (model, loader)")
    num_workers, rows = cluster.num_workers, list[Rows]()
    with record_lookups(model, _forward) as look:
        try:
            for batch in islice(batches, STEPS * num_workers):
                rows.append(look(batch))
        except PartreduceError:
            raise
        except Exception as error:
            raise InputError(f"batch {len(rows)} raised {one_line(error)}") from error
    if len(rows) < num_workers:
        raise InputError(
            f"gave {len(rows)} batches, and a step of {num_workers} workers takes one for each; give more of them, or "
            "a smaller cluster"
        )
    steps = [rows[first : first + num_workers] for first in range(0, len(rows) - num_workers + 1, num_workers)]
    return shares_of(steps, sizes_of(model), cluster), len(steps)


def _forward(model: torch.nn.Module, batch: object) -> None:
    parts, keywords = inputs_of(model, batch)
    try:
        model(*parts, **keywords)
    except PartreduceError:
        raise
    except Exception as error:
        raise InputError(f"forward() of a batch raised {one_line(error)}") from error
