"""Compiled loops shared by two or more engines, and `jit`, which compiles all kernels."""
