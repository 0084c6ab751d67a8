"""The op `selective_scan`: the state space of Mamba-1."""
