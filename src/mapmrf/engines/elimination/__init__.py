"""Elimination orders, bucket trees, mini-buckets, AND/OR search (branch)."""
