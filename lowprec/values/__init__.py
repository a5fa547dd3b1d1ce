"""What a calculation is, as frozen values that backends and machines take: roundings and the order of sums."""
