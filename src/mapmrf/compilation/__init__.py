"""Storing, finding and compiling machine code: the shipped archive, the user's cache, and a compiler process.

`mapmrf.compilation.jit` combines these for the kernels. Nothing here imports numba before it is needed.
"""
