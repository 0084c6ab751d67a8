"""Gemma 4 assistants: drafters without keys of their own, which attend to the target's."""
