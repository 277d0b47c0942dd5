"""Prague's group generator: the service, its workers, its draws, its buffers, and all of them as one system."""
