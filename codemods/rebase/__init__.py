"""Carry a branch across the rename: its commits, transformed, on top of a new upstream."""
