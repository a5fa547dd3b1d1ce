"""Passes: a Block in, a Block out."""
