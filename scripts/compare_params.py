#!/usr/bin/env python3
"""Compare the values of a MaxText checkpoint with those of a Hugging Face one.

    python scripts/compare_params.py --orbax-items-dir DIR/0/items --hf-dir DIR [--max-abs 1e-6] [--report-json FILE]

The model is the one of config.json in --hf-dir; the options that repeat a part of it take precedence. Exit status 0: they
agree, without --max-abs to the last bit. 1: they differ. 2: an error. The same as `ling2-migrate ckpt compare-values`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods import ckpt
from scripts.compare_orbax_safetensors import expected, parser, status_of


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--max-abs", type=float, default=0.0, help="counts as equal; default: 0")
    options.add_argument(
        "--min-cosine", type=float, default=0.999999, help="with --max-abs: has to be reached too"
    )
    given = options.parse_args(arguments)
    return status_of(
        lambda: ckpt.run_compare_values(
            given.orbax_items_dir,
            given.hf_dir,
            max_abs=given.max_abs,
            min_cosine=given.min_cosine,
            report_json=given.report_json,
            **expected(given),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
