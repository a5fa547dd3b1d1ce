"""The chip as figures and rules: what a tile computes, draws, remembers and pays for, without any program."""
