"""Precision: the formats, rounding and rules of a step, and what applies them to a Block."""
