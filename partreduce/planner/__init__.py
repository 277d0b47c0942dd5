"""The planner: from a cluster to the schedules worth choosing between, and the one to take."""
