"""Runs a schedule: torch.distributed strategies, services, and the virtual-time engine."""
