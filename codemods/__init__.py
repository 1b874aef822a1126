"""ling2-migrate: carry a MaxText fork from the old layout (`MaxText`) to upstream's (`maxtext`)."""

__version__ = "0.1.0"
