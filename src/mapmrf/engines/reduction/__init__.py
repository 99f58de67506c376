"""Exact reduction of a model, its components, and labellings lifted back."""
