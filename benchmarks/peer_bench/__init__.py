"""The parts of peers.py: processes that answer prompts with one library each, what they are asked, and the figures."""
