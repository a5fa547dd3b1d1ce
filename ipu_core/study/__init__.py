"""Convergence studies: one model trained in several precisions and seeds, compared, stored and drawn."""
