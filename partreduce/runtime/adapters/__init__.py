"""Adapters: schedules for people who already use DDP or torch's model averagers, and keep their training loop."""
