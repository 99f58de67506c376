"""Work of a step between two looks at the clock, for all methods and engines.

Each figure makes for a step of some 10 to 50 ms on a core of today. Steps are counted, not timed, so that a run takes
the same steps, and gives the same answer, on every machine.
"""

# table entries
SWEEPS = 4_000_000  # of sequential message passing
MESSAGES = 3_000_000  # of parallel messages and of blocks of a dual
SUBGRADIENTS = 1_500_000  # and states and copies, of subproblems
ADMM = 2_000_000
BOX_ADMM = 12_000_000
MOVES = 4_000_000  # of flips, chains, fusions, kicks and annealing
ASCENT = 3_000_000  # of single-variable ascent
LOCAL_SEARCH = 2_000_000  # of trials beside an exact method
SHORT_SEARCH = 1_000_000  # of trials before a tree search
POOL_SEARCH = 20_000_000  # of exact blocks, which read them in order
BUCKETS = 2_000_000  # each of which is read several times
JOIN_TABLES = 1_000_000  # that are filled
REDUCTION = 3_000_000

# other work
ADDITIONS = 20_000_000  # of table entries, in elimination
ARCS = 3_000_000  # of a flow
EXPANSION_ARCS = 2_000_000  # the same, where every move sets up a flow
CONSISTENCY = 1_000_000  # costs that soft arc consistency looks at
CLAUSES = 1_000_000  # visited in the search for a feasible labelling
SEPARATION = 1_000_000  # pairs visited in the search for odd cycles
PRIMAL_DUAL = 3_000_000  # program entries
SPIN_SEARCH = 10_000_000  # spins and couplings
SPIN_RELAXATION = 150_000_000  # multiplications
SPIN_CERTIFICATE = 300_000_000  # multiplications, most of them by BLAS
