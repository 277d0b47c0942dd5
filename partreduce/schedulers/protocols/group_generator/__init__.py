"""Prague's group generator: its service, workers, draws and buffers, and the system of all as one machine."""
