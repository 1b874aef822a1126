#!/usr/bin/env python3
"""Compare names and shapes of a MaxText checkpoint with those of a Hugging Face one.

    python scripts/compare_orbax_safetensors.py --orbax-items-dir DIR/0/items --hf-dir DIR [--report-json FILE]

The model is the one of config.json in --hf-dir; the options that repeat a part of it take precedence. Exit status 0: the
same names and shapes. 1: they differ. 2: an error. The same as `ling2-migrate ckpt compare-shapes`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods import ckpt
from codemods.errors import UserError


def parser(documentation: str | None) -> argparse.ArgumentParser:
    """The options that both comparisons have."""
    made = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--orbax-items-dir", type=Path, required=True, help="the MaxText checkpoint")
    made.add_argument("--hf-dir", type=Path, required=True, help="config.json and safetensors")
    made.add_argument("--first-num-dense-layers", type=int, help="default: of config.json")
    made.add_argument("--num-experts", type=int, help="default: of config.json")
    made.add_argument("--mtp-num-layers", type=int, help="default: of config.json")
    made.add_argument("--report-json", type=Path, help="write the report to this file too")
    return made


def expected(arguments: argparse.Namespace) -> dict[str, int | None]:
    """What the options say of the model."""
    names = ("first_num_dense_layers", "num_experts", "mtp_num_layers")
    return {name: getattr(arguments, name) for name in names}


def status_of(run: Callable[[], int]) -> int:
    """The exit status of a comparison; an error is one line."""
    try:
        return run()
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def main(arguments: list[str] | None = None) -> int:
    given = parser(__doc__).parse_args(arguments)
    return status_of(
        lambda: ckpt.run_compare_shapes(
            given.orbax_items_dir, given.hf_dir, report_json=given.report_json, **expected(given)
        )
    )


if __name__ == "__main__":
    sys.exit(main())
