"""The numbers of `auto`, in the order in which it uses them; `docs/methods/auto.md` shows them as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """All numbers of `auto` that are no options. Iterations and steps take some hundredths of a second, most of them.

    They were found by experiments: `benches/parts.py` (values), `benches/run.py` (times to proof).
    """

    # Before the relaxation
    feasible_first: int = 30  # steps of the search for a feasible labelling before the relaxation
    feasible_more: int = 150  # its steps after the relaxation
    feasible_turn: int = 20  # its steps per turn of the race
    repair_every: int = 4  # of its steps, one in so many is local search
    step_literals: int = 500_000  # literals of clauses written per step
    rewritten_steps: int = 1  # steps of `chains` before the relaxation if tables stand for constraints

    # Relaxation
    large: int = 20_000  # factors from which a model is large: a first labelling at once, and expansions
    expansion_labels: int = 256  # most labels for which expansions are tried
    expand_labels: int = 4  # labels per iteration of the relaxation before expansions, which then get further
    expand_again: int = 16  # times as many iterations before expansions are repeated
    expand_gap: float = 1e-6  # least relative gap for expansions
    decided: float = 0.95  # share of decided variables that ends the relaxation of a large model
    decided_first: int = 15  # iterations before they are counted, and between counts while few are decided
    decided_again: int = 5  # iterations between counts once some are decided
    stall_window: int = 30  # iterations over which a stalled gap ends the relaxation
    stalled: float = 0.9  # share of the gap that is left if it has stalled
    stall_gap: float = 1e-3  # least relative gap at which smaller models do not wait
    slow_steps: int = 3  # steps of the relaxation before the first step of `chains` from its labelling, or `bp`
    loose_gap: float = 0.1  # relative gap from which `bp` goes first, and no trial without forbidden entries
    burst_steps: int = 30  # most steps of `bp` before chains from the best labelling
    burst_idle: int = 2  # steps without improvement that end these
    climb_steps: int = 30  # most steps of `chains` from that labelling
    climb_idle: int = 5  # steps without improvement that end these

    # Trial: `wcsp` on the original model
    trial_variables: int = 2500  # most variables
    trial_factors: int = 5000  # most factors
    trial_entries: int = 1_000_000  # most table entries
    trial_after: int = 2  # steps of the relaxation before it
    trial_steps: int = 8  # its steps before other phases
    trial_turn: int = 8  # its steps per turn of the race
    trial_full: int = 200  # its steps before it may lose turns for want of progress

    # Scouts: `bp` and `chains` by themselves
    scout_idle: int = 30  # least number of iterations without improvement before a scout rests
    scout_idle_share: float = 2.0  # the same in proportion to the iterations to its best labelling
    lost_steps: int = 20  # steps per turn of a scout without a feasible labelling
    behind_steps: int = 60  # steps per turn of a scout behind the best labelling known

    # Reduction and elimination
    simplify_states: int = 2_000_000  # most states, beyond one per variable, of a model that is simplified
    narrow_variables: int = 200_000  # most variables for which elimination orders are computed
    narrow_orders: int = 3  # orders tried

    # Search
    wide_gap: float = 0.01  # relative gap from which the search goes first, and LS-LP without its LP phase
    search_turn: int = 5  # iterations per turn of a search phase
    starts_first: int = 7  # iterations of the first turn of LS-LP after that of `wcsp`: its first labellings
    first_width: float = 9.0  # logarithm of the largest table of a block pass over a starting point
    first_passes: int = 3  # such passes
    block_variables: int = 20_000  # most variables per pass: some 50 ms
    chain_length: int = 20  # most flips of a chain
    bp_iterations: int = 200  # of belief propagation, which finds its best labellings early
    start_iterations: int = 1000  # average number of iterations per LS-LP start
    step_configs: int = 2_000_000  # table entries per step of another method: a few milliseconds
    region_least: int = 60  # smallest region of a restart; sizes are uniform on a logarithmic scale
    region_most: int = 400  # largest region
    region_entries: int = 100_000  # fixed cost of a restart, in table entries
    mix_every: int = 50  # restarts between crossings of the whole pool into its best labelling
    kick_variables: int = 2000  # least number of variables for kicks if the gap is narrow
    kick_entries: int = 4_000_000  # table entries per step of kicks and chains: some 20 ms
    kick_idle: int = 50  # steps without improvement before kicks restart from the best labelling
    few_per_table: int = 4  # variables per table that are few: kicks are used, and smaller ones added
    flip_kick: int = 12  # most variables of these
    flip_depth: int = 2  # most variables of the sets that are flipped to repair them

    # Binary pairwise models with a wide gap
    anneal_turn: int = 20  # iterations per turn of annealing
    anneal_weight: float = 3.0  # initial turns per cycle
    anneal_least: float = 1.0  # fewest turns, relative to these, while the gap is wide
    branch_waits: int = 12  # cycles before `branch` begins, whose mini-buckets take seconds
    sdp_small: int = 250  # variables up to which the semidefinite bound, which proves them, begins at once
    sdp_waits: int = 2  # cycles before it begins on others

    # Dense binary models: tabu search and semidefinite bounds
    sparse_degree: float = 6.0  # average number of pairs per variable up to which a model is sparse
    tabu_variables: int = 20_000  # most variables for tabu search, in which every flip looks at all
    tabu_turn: int = 10  # iterations per turn
    tabu_spins: int = 250  # variables per initial turn in a cycle
    tabu_least: float = 0.5  # fewest such turns: small models are soon searched
    tabu_most: float = 4.0  # most such turns
    dense_others: float = 0.25  # initial turns per cycle of the other searchers, which find little
    dense_waits: int = 2  # cycles before they begin
    sdp_first: int = 20  # iterations of the first turn of the semidefinite bound: enough for one
    sdp_turn: int = 5  # iterations of later turns
    sdp_turns: float = 2.0  # initial turns per cycle, as it stalls at times
    sdp_cuts_degree: float = 12.0  # most pairs per variable, on average, for cutting planes beside it

    # Provers
    prover_turn: int = 5  # iterations per turn
    wcsp_first: int = 16  # iterations of the first turn of `wcsp`, which solves many models at once
    branch_variables: int = 20_000  # most variables for `wcsp` and `branch`
    branch_turn: int = 10  # iterations per turn of `branch`, whose bound improves only at its end
    branch_width_left: int = 8  # most variables by which buckets may exceed mini-buckets if it keeps its turns
    cuts_pairs: int = 300_000  # most pairs of a binary model for cutting planes
    cuts_turn: int = 60_000  # pairs processed by the rounds of a turn: on two threads, as long as the search's
    program_entries: int = 300_000  # most matrix entries of a 0/1 program: its first relaxation takes seconds
    program_turn: int = 1  # iterations per turn of the 0/1 program, which take longer than others
    program_reports: int = 3  # reports of HiGHS or SCIP per iteration
    program_waits: int = 3  # cycles before it begins if the gap is wide, which its relaxation does not close
    clusters_weight: float = 0.5  # initial turns per cycle of the clusters

    # Cycles
    progress: float = 1e-3  # share of the gap that a turn must close to count, unless it improves the value
    raised: float = 1.5  # factor on a phase's turns per cycle after progress
    lowered: float = 0.7  # the same without progress
    weight_most: float = 2.0  # most turns per cycle, relative to the initial ones
    weight_least: float = 0.15  # fewest turns per cycle, relative to the initial ones
    wait: float = 0.02  # seconds between checks for the end of provers on other threads
    patience: float = 0.5  # share of the remaining time to wait for a kernel to compile

    # Models with constraints
    counters_turn: int = 3  # steps per turn of the local search with counters
    counters_states: int = 600_000  # states that it examines per step: some 20 ms
    counters_idle: int = 40  # changes per variable without improvement before it is kicked
    propagation_first: int = 12  # steps of branch and bound by soft consistency in its first turn
    propagation_turn: int = 6  # steps per turn of branch and bound by soft consistency
    tables_turn: int = 4  # steps per turn of `auto` on the model with tables
    relaxation_first: int = 20  # steps of the first turn of LS-LP: a labelling from which chains start, if it is fast
    relaxation_turn: int = 3  # steps of later turns
    rows_turn: int = 4  # steps per turn of branch and cut
    few_indicators: int = 50  # indicators up to which tables go first
    many_indicators: int = 1000  # indicators above which LS-LP goes first, as the tables would be as large
    many_turn: int = 60  # steps per turn of LS-LP then
    assignment_rows: int = 100  # rows up to which our assignment is faster than importing that of SciPy


SETTINGS = Settings()
