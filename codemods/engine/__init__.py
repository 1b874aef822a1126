"""From a checkout to a migrated tree: discover, parse once, run the rules, write whole or not at all."""
