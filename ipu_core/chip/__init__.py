"""The chip without any program: figures of targets, cycles of codelets, arithmetic and random numbers of a tile."""
