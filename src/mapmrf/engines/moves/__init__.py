"""Local search: flips, chains, kicks, exact blocks, fusion, annealing."""
