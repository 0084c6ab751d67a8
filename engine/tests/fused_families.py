"""Families of tiny targets whose decoders run in the fused pass."""

FUSED = {"llama", "qwen3", "gemma3", "mistral", "gemma2", "qwen2", "smollm3", "granite", "gemma", "seed_oss"}
