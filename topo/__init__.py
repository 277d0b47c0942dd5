"""What is connected to what and when: cluster, topologies, schedules and their JSON, mixing, spectra, timing."""
