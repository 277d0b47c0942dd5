"""PyTorch Lightning: `Trainer(strategy=partreduce.lightning.ScheduleStrategy("schedule.json"))`. Needs lightning."""

from partreduce.runtime.adapters.lightning_strategy import ScheduleStrategy

__all__ = ["ScheduleStrategy"]
