"""Prague's group generator: the service, its workers, its draws, its buffers, and one system of all."""
