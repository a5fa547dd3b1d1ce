"""Operations on tiles (PopLibs' part): codelets, their cycles, and functions that add them to a graph."""
