"""User calls that mypy accepts or rejects in `make check`; an unused `type: ignore` fails too."""

import partreduce
import partreduce.verify.checker

schedule: partreduce.Schedule = partreduce.design("2x4", build="allreduce", every=4)
plan: partreduce.types.Plan = partreduce.design(partreduce.PlanRequest(cluster=schedule.cluster), progress=print)
proof: partreduce.types.Proof = partreduce.verify(schedule)
metrics: partreduce.types.ScheduleMetrics = partreduce.metrics(schedule)
wrong: int = partreduce.verify(schedule)  # type: ignore[assignment]
partreduce.design("2x4")  # type: ignore[call-overload]
