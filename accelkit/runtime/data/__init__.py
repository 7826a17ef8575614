"""Loaders that give each rank its share: index arithmetic, samplers, the prepared loader."""
