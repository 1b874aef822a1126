"""The edits that wire Ling2 into upstream's own files, as structural codemods."""

from __future__ import annotations

from pathlib import Path

from codemods.engine.overlay import Integration
from target.integration import (
    checkpoint,
    config,
    counting,
    decoder,
    linen,
    moe,
    mtp,
    normalization,
    training,
)
from target.integration.inserted_source import field_names

NEW_FILES = Path(__file__).parents[1] / "maxtext"
INTEGRATIONS: tuple[Integration, ...] = tuple(
    sorted(
        (
            *config.INTEGRATIONS,
            *normalization.INTEGRATIONS,
            *moe.INTEGRATIONS,
            *decoder.INTEGRATIONS,
            *mtp.INTEGRATIONS,
            *training.INTEGRATIONS,
            *counting.INTEGRATIONS,
            *linen.INTEGRATIONS,
            *checkpoint.INTEGRATIONS,
        ),
        key=lambda integration: integration.rule.id,
    )
)


def config_fields() -> frozenset[str]:
    """The configuration fields that an overlay adds to upstream's."""
    return field_names("ling2_config", "Ling2")
