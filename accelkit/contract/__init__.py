"""The wall between host and container: what both sides agree on, in the standard library alone."""
