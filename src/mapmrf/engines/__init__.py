"""Algorithms shared by the methods, by family: Python drivers next to their kernels."""
