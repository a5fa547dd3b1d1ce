"""Training: optimisers, the step as a Block, the loop, data and checkpoints."""
