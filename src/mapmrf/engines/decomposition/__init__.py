"""Dual decomposition by subgradients: trees and single factors (dd_sg, psdd)."""
