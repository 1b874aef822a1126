"""Few cases that together hold every pair of values of any two factors."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Greedy: each case is the one of many random ones, built on an open pair, that holds the most open pairs."""
    rng = random.Random(seed)
    names = list(factors)
    open_pairs = {
        (a, i, b, j)
        for a, b in combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    cases = []
    while open_pairs:
        best: dict[str, int] = {}
        most: set[tuple[str, int, str, int]] = set()
        first = min(open_pairs)
        for _ in range(40):
            case = {name: rng.randrange(len(values)) for name, values in factors.items()}
            case[first[0]], case[first[2]] = first[1], first[3]
            held = {(a, case[a], b, case[b]) for a, b in combinations(names, 2)} & open_pairs
            if len(held) > len(most):
                best, most = case, held
        open_pairs -= most
        cases.append({name: factors[name][i] for name, i in best.items()})
    return cases
