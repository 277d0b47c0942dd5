"""Starts local workers as torchrun would, watches over them, and leaves nothing behind: `partreduce run`."""
