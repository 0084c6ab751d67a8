"""What a request's parameters do to rows of logits, and how a token is drawn at them; knows no step."""
