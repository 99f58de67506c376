"""Compiled loops that two or more methods share."""
