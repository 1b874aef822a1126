"""Parity: the old checkout, the migrated one and the target package compute the same.

Each side runs in a process of its own (`side.py`), since their packages exclude each other; `run.py` starts them, carries the
weights and compares what comes back.
"""
