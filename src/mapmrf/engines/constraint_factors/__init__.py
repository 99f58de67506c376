"""Factors without tables, for constraints that count how many of some states are on."""
