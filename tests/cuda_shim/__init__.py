"""Checks of the CUDA sources on machines without a GPU: NVRTC through ctypes, and CuPy's part played on the CPU."""
