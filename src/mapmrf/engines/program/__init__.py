"""The model as a linear or 0/1 program: HiGHS, SCIP, cutting planes (lp, cuts)."""
