"""Start local workers as torchrun would, watch over them, and clean up behind them: `partreduce run`."""
