"""The op `logprobs`: log-probability and rank of one chosen id of each row of logits."""
