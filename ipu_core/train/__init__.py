"""Training: optimisers, the step as a Block, the loop, data and checkpoints."""

ENGINES = ("tiles", "direct")
"""What runs a step: the modelled tiles, or whole arrays with the same bits."""
