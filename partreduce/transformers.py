"""Hugging Face's Trainer: `partreduce.transformers.ScheduleCallback(trainer, "schedule.json")`. Needs transformers."""

from partreduce.runtime.adapters.trainer_callback import ScheduleCallback

__all__ = ["ScheduleCallback"]
