"""`model.generate(custom_generate=...)` of transformers by this engine."""
