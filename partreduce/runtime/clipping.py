"""Clip gradients by their global norm in every kind of run, as `torch.nn.utils.clip_grad_norm_` does on one device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from partreduce.runtime.arguments import checked_number
from partreduce.runtime.optimizer import optimizer_of
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.runtime.sharding.tables import Tables


@check_arguments
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Clip gradients in place by their global norm, with the arguments of `torch.nn.utils.clip_grad_norm_`.

    All workers call it, between `backward()` and `step()`. If the schedule averages gradients, they are averaged first
    (see `average_gradients`), and the norm is that of a single device with the whole batch. The norms of sharded rows
    are summed over their owners. If the schedule averages parameters, each worker clips by its own norm; with
    separately placed tables, by a common one, for which dense norms (to the power of `norm_type`) are averaged over
    workers.

    Args:
        parameters: parameters whose gradients are clipped, all of one DistributedOptimizer or of none.
        max_norm: gradients with a larger norm are scaled down to this norm.
        norm_type: p of the p-norm; `inf` for the largest absolute value.
        error_if_nonfinite: raise if the norm is infinite or NaN.
        foreach: passed to torch's function.

    Returns:
        The norm before clipping.

    Raises:
        InputError: parameters of several optimizers, a `norm_type` of 0 or below with separately placed tables or
            sparse gradients, or workers that call different operations.
        PeerFailedError: a worker is gone.
        RuntimeError: the norm is not finite, with `error_if_nonfinite`.
    """
    max_norm = checked_number("clip_grad_norm_: max_norm", max_norm)
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    owners = {owner for owner in map(optimizer_of, given) if owner is not None}
    if len(owners) > 1:
        raise InputError("clip_grad_norm_: these parameters belong to several DistributedOptimizers; clip each's own")
    optimizer = next(iter(owners), None)
    tables = None if optimizer is None else optimizer.run.tables
    has_equal_means = optimizer is None or optimizer.run.schedule.strategy.averages_gradients
    if tables:
        _check(norm_type)
    apart = _Apart(given, tables, float(norm_type), equal=has_equal_means)
    gathered = tables.close_step(apart.share) if tables else None
    if optimizer is not None:
        optimizer.average_gradients()
    is_sparse = any(parameter.grad is not None and parameter.grad.is_sparse for parameter in given)
    if not tables and not is_sparse:
        return torch.nn.utils.clip_grad_norm_(given, max_norm, norm_type, error_if_nonfinite, foreach)
    _check(norm_type)
    if tables and gathered is None:
        gathered = tables.exchange_norm(apart.share())
    total = apart.norm(gathered or [])
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped")
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for parameter in given:
        if (gradient := parameter.grad) is not None:
            numbers = gradient._values() if gradient.is_sparse else gradient  # noqa: SLF001 - the stored values
            numbers.mul_(factor.to(numbers.dtype))  # a host scalar works for every device
    return total.to(given[0].device)


def _check(norm_type: float) -> None:
    if not float(norm_type) > 0:
        raise InputError(f"clip_grad_norm_: norm_type is {norm_type}; of rows that lie apart it is above 0, or inf")


class _Apart:
    """Global norm of gradients that no worker has completely, computed in float32 or a wider dtype.

    Of sharded embedding tables each worker has only some rows. `equal` says whether all other gradients are equal on
    all workers; if not, workers also exchange the norms of those and average them.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], tables: Tables | None, norm_type: float, *, equal: bool
    ) -> None:
        self._norm_type, self._num_workers = norm_type, tables.num_workers if tables else 1
        sharded = {id(table.parameter) for table in tables or () if table.is_sharded}
        self._rows = [one for one in parameters if id(one) in sharded]
        dense = [one for one in parameters if id(one) not in sharded]
        self._differing, self._known = ([], dense) if equal else (dense, [])

    def share(self) -> float:
        """Return this worker's contribution to the norm: the largest value for p = inf, else a sum of p-th powers."""
        if self._norm_type == torch.inf:
            return _largest([*self._rows, *self._differing])
        return _powers(self._rows, self._norm_type) + _powers(self._differing, self._norm_type) / self._num_workers

    def norm(self, gathered: Sequence[float]) -> torch.Tensor:
        """Return the global norm from all workers' `gathered` shares and the gradients that all workers share."""
        dtype = torch.float32
        for parameter in (*self._rows, *self._differing, *self._known):
            if parameter.grad is not None:
                dtype = torch.promote_types(dtype, parameter.grad.dtype)
        if self._norm_type == torch.inf:
            # Torch's max, unlike Python's, keeps a NaN.
            return torch.tensor([*gathered, _largest(self._known)], dtype=torch.float64).max().to(dtype)
        total = sum(gathered) + _powers(self._known, self._norm_type)
        return torch.tensor(total ** (1.0 / self._norm_type), dtype=dtype)


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    plain = gradient.detach().as_subclass(torch.Tensor) if type(gradient) is not torch.Tensor else gradient.detach()
    return plain.coalesce().values() if plain.is_sparse else plain


def _largest(parameters: Sequence[torch.Tensor]) -> float:
    parts = [_numbers(one.grad) for one in parameters if one.grad is not None]
    largest = [float(one.abs().max()) for one in parts if one.numel()]
    return float(torch.tensor([0.0, *largest], dtype=torch.float64).max())


def _powers(parameters: Sequence[torch.Tensor], norm_type: float) -> float:
    parts = [_numbers(one.grad) for one in parameters if one.grad is not None]
    norms = [float(torch.linalg.vector_norm(part, norm_type, dtype=torch.float64)) for part in parts]
    return float(sum(norm**norm_type for norm in norms))
