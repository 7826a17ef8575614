"""The pytest plug-in: test bodies on every rank, in containers or as local processes."""
