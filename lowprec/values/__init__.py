"""Frozen values that describe a calculation, as backends and machines take them: formats, roundings, orders of sums."""
