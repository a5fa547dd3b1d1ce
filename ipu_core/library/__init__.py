"""Operations on tiles: codelets, their cycles and the builders that add them to a graph.

The compiler lowers a Block's equations to them. Layers, losses and the like are functions of `ipu_core.nn`, which
`ipu_core.add_traced` brings into a graph.
"""
