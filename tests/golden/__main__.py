"""Writes every golden file anew: run it only when the contract they pin has changed, and say why in the commit."""

from tests.golden import blocks, orders, rounding, save, summation, sums, training

for module in (blocks, orders, rounding, summation, sums, training):
    for name, data in module.build().items():
        save(name, data)
        print(name)
