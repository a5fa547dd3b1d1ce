"""Tracing: a Python function on arrays becomes the equations of a Block."""
