"""Numbers that share scales, one for a tensor (`tensor`) or for each block (`blocks`), and codes packed into bytes."""
