"""Blocks: traced programs as typed equations, and their meanings."""
