"""Torch building blocks shared by hosts and model-based plugins; the only part of core that may import torch."""
