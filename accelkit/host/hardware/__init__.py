"""What this machine has, found without torch."""
