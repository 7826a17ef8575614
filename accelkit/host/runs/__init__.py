"""Records of runs: store, capture, replay, compare."""
