"""kit.yaml: its model, how it is found and merged, its problems, and the wizard that writes it."""
