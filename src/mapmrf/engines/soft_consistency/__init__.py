"""Soft arc consistency: cost networks with cost shifting between tables and variables, and branch and bound."""
