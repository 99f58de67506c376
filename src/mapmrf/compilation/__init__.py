"""How machine code is kept, found and made: what ships, the user's cache, and compiling in another process.

`mapmrf.kernels.jit` brings this together for the kernels. Nothing here imports numba before it is needed.
"""
