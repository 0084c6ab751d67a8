"""vLLM's methods and arguments: which are honoured, which are refused, and why."""
