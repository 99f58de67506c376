"""Compiled loops that two or more engines share, and how kernels are compiled and kept (`jit`)."""
