"""The benchmark: methods x models -> records -> tables and a page."""
