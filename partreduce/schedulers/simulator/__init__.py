"""Virtual time: the same schedules and protocols without torch, threads or waiting."""
