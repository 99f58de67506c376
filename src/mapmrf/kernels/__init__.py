"""Compiled loops that two or more engines share, and `jit`, which compiles all kernels."""
