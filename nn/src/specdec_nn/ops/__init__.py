"""One folder an op: its definition in torch (`reference`), and faster backends tested against it."""
