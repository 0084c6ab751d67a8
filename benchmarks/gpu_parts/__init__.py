"""The parts of `gpu_check.py`: what each looks at and measures; each can be run by itself."""
