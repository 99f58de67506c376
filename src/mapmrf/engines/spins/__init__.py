"""Binary pairwise models as spins: tabu search, rank-2 angles, and bounds by semidefinite programs."""
