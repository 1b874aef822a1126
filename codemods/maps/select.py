"""Which map a checkout needs: by merge base, else by the best match of its files."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).with_name("data")


def shipped() -> list[Path]:
    """The map files that ship with this program."""
    return sorted(DATA.glob("*.json.gz"))
