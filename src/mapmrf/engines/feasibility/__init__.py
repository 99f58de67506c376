"""Hard constraints: clauses, conflict-driven search, counting arguments, and labellings that violate few factors."""
