"""Hard constraints: clauses, conflict-driven search, counting arguments, and repair of labellings."""
