"""Who is there and agrees: handshake, heartbeat, survivors, uneven inputs."""
