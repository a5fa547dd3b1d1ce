"""Numbers that share scales, one for a tensor (`tensor`) or for each block (`blocks`), and their products.

Beside them: codes packed into bytes (`packing`), and rotations that spread outliers before (`rotations`).
"""
