"""Transformers models over flat ragged batches: loading, the attention binding, and the trial that each must pass."""
