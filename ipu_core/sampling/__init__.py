"""Sampling from a density by Hamiltonian Monte Carlo, whole trajectories on the device, in any precision."""
