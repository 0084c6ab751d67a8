"""The op `top_ids`: the most likely ids of rows of logits, with their log-probabilities."""
