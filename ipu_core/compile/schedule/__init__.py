"""The order in time: what is computed together, loaded, stored, kept and made again."""
