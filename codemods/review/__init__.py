"""What a person reads: the page made from a report."""
