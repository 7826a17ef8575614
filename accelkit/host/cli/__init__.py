"""The commands of `kit`, a file each; main.py finds them, render.py prints."""
