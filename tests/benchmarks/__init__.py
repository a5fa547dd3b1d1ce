"""Ratio benchmarks, run by `make bench`."""
