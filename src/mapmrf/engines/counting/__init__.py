"""Factors without tables: how many of some states are on, and what that allows."""
