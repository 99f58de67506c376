"""Local search: flips, chains, kicks, exact blocks, crossover, annealing."""
