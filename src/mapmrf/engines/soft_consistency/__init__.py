"""Soft arc consistency: cost networks whose costs move between tables and variables, and branch and bound on them."""
