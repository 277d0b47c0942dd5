"""The parts of the explorer: how processes and a network make one system, and how its states are searched."""
