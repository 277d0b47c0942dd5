"""Run the group generator as a service: the explored state machine behind a socket, with a log, keys and leases."""
