"""ADMM on a factor graph: layout, factor and variable steps, the sphere, measurement (lslp, ad3, l2box)."""
