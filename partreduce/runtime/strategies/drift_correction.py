"""Drift correction: control variates for workers whose data differ (ProxSkip/Scaffnew, ICML 2022, applied to groups).

A worker whose data differ from the others' is pushed away from the mean in every step. It learns that push: a
correction h_i of model size, subtracted from its gradients, to which every mean of its group adds
α · (mean − x_i) / s̄. s̄ is the group's mean of the sum of learning rates since each member's last mean; because it is
common to the group, the corrections of a group go on summing to zero, and the mean model is not biased. s̄ travels in a
part of the array that averages of parameters leave unused.

What is learned is the push along each worker's own path. Where a learning rate is too large for one worker's data alone
(rate · curvature > 2), that path swings around the place where all met, the correction learns the swing, and grows. So
every worker compares it with the first gradient g_i after a mean, taken where its members agree, and whenever *all*
workers meet, all corrections are multiplied by κ = Σ⟨g_i, h_i⟩ / Σ‖h_i‖², clipped to [0, 1]: the scale at which they
predict those gradients best. Where κ < ½ they are better dropped than kept, so α is halved; it recovers by a fifth a
meeting. Factors that are everybody's keep the sum of corrections zero; they cost two more numbers in each array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.commit import only_where, replace_where
from partreduce.runtime.averaging.gradients import own_gradients
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.strategies.group_means import GroupMeans
from partreduce.topo.errors import InputError
from partreduce.topo.figures.correction import best_alpha, correction_radius, refuse_schedule
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging


def chosen_alpha(asked: float | str | None, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float | None:
    """The strength α of the correction, None without it.

    `auto` takes the stable strength that settles fastest (topo.figures.correction).

    Raises:
        InputError: an optimizer or schedule for which the correction is not shown right, or an unstable strength.
    """
    if asked is None:
        return None
    refuse_schedule(schedule)
    _refuse_optimizer(optimizer)
    if isinstance(asked, str):
        if asked != "auto":
            raise InputError(f"drift_correction: {asked!r} is neither 'auto' nor a strength such as 0.3")
        return best_alpha(schedule)[0]
    alpha = float(asked)
    if not 0 < alpha <= 2:
        raise InputError(f"drift_correction: {asked} is not a strength in (0, 2]; 'auto' chooses one")
    radius = correction_radius(schedule, alpha)
    if not radius < 1:
        best, lowest = best_alpha(schedule)
        raise InputError(
            f"drift_correction: {alpha:g} diverges with schedule {schedule.name!r}: the spectral radius of a period is "
            f"{radius:.6g}, and only below 1 corrections settle; 'auto' takes {best:.3g} (radius {lowest:.3g})"
        )
    return alpha


EVIDENCE = 2
"""Numbers of a bucket's note beside one per parameter: Σ⟨g, h⟩ and Σ‖h‖²."""

DOUBTED = 0.5
"""Below this κ the gradients, corrected, are longer than they are uncorrected."""

RECOVERY = 1.2
"""What the trust in α grows by at a meeting without doubt."""

LEAST_TRUST = 1 / 64


class CorrectedMeans(GroupMeans):
    """Group means of parameters, with gradients corrected by what the means have shown.

    Costs two more arrays of model size. Weight decay counts as part of the gradient.

    Each bucket's note holds the sum of rates of every parameter since its last mean, then Σ⟨g, h⟩ and Σ‖h‖² over first
    steps after means, since all workers met.
    """

    saves_inside_rounds = False

    def __init__(self, run: Run, optimizer: torch.optim.Optimizer, alpha: float) -> None:
        super().__init__(run, averaging=Averaging.MEAN, overlap=False)
        self.optimizer, self.alpha = optimizer, alpha
        self.corrections = [torch.zeros_like(bucket.flat) for bucket in run.flat.buckets]
        self._change = [torch.empty_like(bucket.flat) for bucket in run.flat.buckets]
        for bucket in run.flat.buckets:
            bucket.carry(torch.zeros(len(bucket.slots) + EVIDENCE, dtype=bucket.dtype, device=bucket.device))
        self._together = True
        self.trust = [_wide(correction.new_ones(())) for correction in self.corrections]
        """For each bucket what α is multiplied by, in [1/64, 1]."""
        self.doubts = [_wide(correction.new_zeros(())) for correction in self.corrections]
        """For each bucket how often all workers met and halved α."""
        self._places = {
            slot.parameter: (bucket, index, slot.view(correction))
            for bucket, correction in zip(run.flat.buckets, self.corrections, strict=True)
            for index, slot in enumerate(bucket.slots)
        }
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def close(self) -> None:
        """Leave the wrapped optimizer as it was."""
        for hook in self._hooks:
            hook.remove()
        for bucket in self.run.flat.buckets:
            bucket.note = None
        super().close()

    def state(self) -> dict[str, torch.Tensor]:
        """The corrections and the sums of rates, for checkpoints."""
        named: dict[str, torch.Tensor] = {}
        for index, (bucket, correction) in enumerate(zip(self.run.flat.buckets, self.corrections, strict=True)):
            assert bucket.note is not None, "made with this strategy"
            named |= {f"correction/{index}": correction, f"rates/{index}": bucket.note}
            named |= {f"trust/{index}": self.trust[index], f"doubts/{index}": self.doubts[index]}
        return named

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for index, (bucket, correction) in enumerate(zip(self.run.flat.buckets, self.corrections, strict=True)):
            assert bucket.note is not None, "made with this strategy"
            correction.copy_(state[f"correction/{index}"])
            bucket.note.copy_(state[f"rates/{index}"])
            self.trust[index].copy_(state[f"trust/{index}"])
            self.doubts[index].copy_(state[f"doubts/{index}"])
        self._together = not any(
            bool(bucket.note[: len(bucket.slots)].any()) for bucket in self.run.flat.buckets if bucket.note is not None
        )

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Correct the gradients right before they are used, after a closure if there is one."""
        _refuse_optimizer(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._correct()
            return args, kwargs
        kwargs = {key: value for key, value in kwargs.items() if key != "closure"}
        return args[:1], kwargs | {"closure": self._corrected(closure)}

    def _corrected(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:  # noqa: ANN401 - what the closure returns
            loss = closure()
            self._correct()
            return loss

        return evaluate

    def _correct(self) -> None:
        own_gradients(self.run.flat.slots())
        with torch.no_grad():
            if self._together:
                self._compare()
            for group in self.optimizer.param_groups:
                sign = -1 if group.get("maximize") else 1
                for parameter in group["params"]:
                    place = self._places.get(parameter)
                    if place is None:
                        continue
                    if parameter.grad is None:
                        # A gradient of zero: the correction still acts.
                        parameter.grad = torch.zeros_like(parameter)
                    parameter.grad.sub_(place[2], alpha=sign)

    def _compare(self) -> None:
        """Add ⟨g, h⟩ and ‖h‖² to the notes."""
        buckets = self.run.flat.buckets
        agreements = [_wide(correction.new_zeros(())) for correction in self.corrections]
        for group in self.optimizer.param_groups:
            sign = -1 if group.get("maximize") else 1
            for parameter in group["params"]:
                place = self._places.get(parameter)
                if place is not None and parameter.grad is not None:
                    index = next(i for i, bucket in enumerate(buckets) if bucket is place[0])
                    agreements[index] += sign * _dot(parameter.grad, place[2])
        for bucket, correction, agreement in zip(buckets, self.corrections, agreements, strict=True):
            assert bucket.note is not None, "made with this strategy"
            evidence = bucket.note[len(bucket.slots) :]
            pair = _wide(evidence) + torch.stack([agreement, _dot(correction, correction)])
            most = torch.full_like(agreement, torch.finfo(bucket.dtype).max / 8)
            # What is not finite has run away and agrees with nothing; what the dtype cannot hold is scaled as a pair.
            pair = torch.where(pair.isfinite().all(), pair, torch.stack([torch.zeros_like(most), most]))
            evidence.copy_(pair * (most / pair.abs().max().maximum(most)))

    def _after(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        """Count the rates of a step that was really taken."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                place = self._places.get(parameter)
                if place is not None and place[0].note is not None:
                    place[0].note[place[1]] += float(group["lr"])
                    self._together = self._together and not group["lr"]

    def _commit(self, reduction: Reduction) -> None:
        everybody = len(reduction.group.members) == self.run.schedule.num_workers
        with torch.no_grad():
            for index, (bucket, sums) in enumerate(zip(reduction.buckets, reduction.arrays, strict=True)):
                with self.run.reducer.stream(bucket.device):
                    if everybody:
                        self._keep_what_predicts(index, bucket, sums, reduction.ok)
                    self._learn(index, bucket, sums, reduction.ok)
        super()._commit(reduction)
        self._together = True

    def _keep_what_predicts(self, index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Commit h ← κ h and the trust in α with the κ of everybody's evidence, and begin to gather evidence anew."""
        assert bucket.note is not None, "made with this strategy"
        correction, trust = self.corrections[index], self.trust[index]
        first = bucket.tail + len(bucket.slots)
        agreement, size = _wide(sums[first : first + EVIDENCE])
        kappa = torch.where(size > 0, (agreement / size).clamp(0, 1), torch.ones_like(size))
        if ok is not None:
            kappa = torch.where(ok, kappa, torch.ones_like(kappa))
        doubted = kappa < DOUBTED
        # What is not finite becomes zero, not a product.
        correction.copy_(torch.where(kappa > 0, correction * kappa, torch.zeros_like(correction)))
        trusted = torch.where(doubted, trust / 2, trust * RECOVERY).clamp(LEAST_TRUST, 1)
        replace_where(trust, trusted, ok)
        self.doubts[index] += doubted
        bucket.note[len(bucket.slots) :].mul_(0 if ok is None else ~ok)
        if not self.run.reducer.streams.runs_ahead:  # otherwise the host waits for nothing
            with self.run.reducer.recorder.span("drift correction", kept=float(kappa), trust=float(trust)):
                pass

    def _learn(self, index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Commit h ← h + α (mean − x) / s̄, parameter by parameter, since groups of parameters have their own rates."""
        assert bucket.note is not None, "made with this strategy"
        correction, change = self.corrections[index], self._change[index]
        torch.sub(sums[: bucket.size], bucket.flat, out=change)
        rates = sums[bucket.tail : bucket.tail + len(bucket.slots)]
        # Where nobody took a step there is nothing to learn; a host that looked would wait for the device.
        factors = torch.where(
            rates > 0, (self.alpha * self.trust[index]).to(rates.dtype) / rates, torch.zeros_like(rates)
        )
        if ok is not None:
            only_where(change, ok)  # a factor of zero would keep what is not finite
        for factor, slot in zip(factors, bucket.slots, strict=True):
            slot.view(correction).addcmul_(slot.view(change), factor)
        own = bucket.note[: len(bucket.slots)]
        own.mul_(0 if ok is None else ~ok)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """In a dtype in which sums of many products are safe."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _dot(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.dot(_wide(first.reshape(-1)), _wide(second.reshape(-1)))


def _refuse_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer) is not torch.optim.SGD:
        raise InputError(
            f"drift_correction: is shown right for plain SGD only, and the optimizer is {type(optimizer).__name__}"
        )
    for index, group in enumerate(optimizer.param_groups):
        if group["momentum"]:
            raise InputError(
                f"drift_correction: is shown right for plain SGD only, and parameter group {index} has momentum "
                f"{group['momentum']:g}; set it to 0 or leave the correction out"
            )
