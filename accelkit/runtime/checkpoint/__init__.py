"""Checkpoints: what a run needs to go on, written whole or not at all, and read back in place."""
