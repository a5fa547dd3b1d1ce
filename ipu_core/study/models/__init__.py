"""The study's own models, each with its data, loss and evaluation."""
