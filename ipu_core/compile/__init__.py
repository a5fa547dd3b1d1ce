"""Compilation: what knows both the equations of a Block and the tiled graph they become."""
