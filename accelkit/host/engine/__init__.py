"""Docker through its SDK and its command-line plugins."""
