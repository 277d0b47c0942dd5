"""Draw schedules and timelines, and write the planner's answers and reports."""
