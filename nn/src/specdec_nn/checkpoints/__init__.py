"""Reading draft checkpoints: tensors by name, and vocabulary maps."""
