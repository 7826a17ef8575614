"""What ranks do together: carriers (local, torch.distributed) and operations on nested structures above them."""
