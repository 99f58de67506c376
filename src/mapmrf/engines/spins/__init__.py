"""Binary pairwise models as spins: tabu search, rank-2 relaxation, and semidefinite bounds."""
