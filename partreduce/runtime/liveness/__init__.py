"""Check which workers are alive and agree: handshake, heartbeat, survivors, uneven inputs."""
