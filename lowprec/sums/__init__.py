"""Sums: `ordered` rounds every addition; `products`, `reduce` and `scatter` add in float32, as a matrix unit does."""
