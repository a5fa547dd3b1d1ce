"""Plans: in which order a sum is made (Accumulation) and where the work is put (Placement)."""
