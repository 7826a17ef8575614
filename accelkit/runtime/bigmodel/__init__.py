"""Models larger than memory: built empty, mapped onto devices, loaded without copies, run with weights left on disk."""
