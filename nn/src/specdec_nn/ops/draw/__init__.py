"""The op `draw`: the token of each row of logits, the largest or the winner of the exponential race."""
