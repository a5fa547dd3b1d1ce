"""Sums: `ordered` rounds every addition; `matmul`, `reduce` and `scatter` add in float32, as a matrix unit does."""
