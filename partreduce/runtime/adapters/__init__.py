"""Run schedules in training loops that use DDP or torch's model averagers."""
