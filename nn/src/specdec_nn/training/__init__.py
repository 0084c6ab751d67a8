"""What trainers of heads share: batches of one shape, keys and values of unrolled drafts, losses, parts of a target."""
