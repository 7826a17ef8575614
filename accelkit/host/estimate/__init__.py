"""What a model needs, told without its weights and without torch: sizes, and which device holds what."""
