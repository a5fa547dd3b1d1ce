"""Training: optimizers, the step as a Block, the loop, data and checkpoints."""

ENGINES = ("tiles", "direct")
"""What runs a step: the modelled tiles, or whole arrays with the same bits."""

GENERATORS = ("philox", "hardware")
"""Where random bits come from: the run's key, or the tiles' own generators."""
