"""Running a method: the contract of methods, the loop, limits, signals, saved state, and the result."""
