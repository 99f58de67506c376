"""Subgradient dual decomposition into trees or single factors (dd_sg, psdd)."""
