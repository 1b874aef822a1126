"""What goes into an upstream MaxText tree: `maxtext/` is new files, `integration/` wires them in."""
