"""Test bodies on every rank, in containers or as local processes: a pytest plug-in."""
