"""What methods share, by family: drivers in Python and their kernels side by side."""
