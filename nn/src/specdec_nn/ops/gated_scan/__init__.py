"""The op `gated_scan`: linear attention with a decaying state, of gated delta nets and of Mamba-2."""
