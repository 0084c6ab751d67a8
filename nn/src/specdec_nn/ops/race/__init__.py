"""The op `race`: the draw of a token by an exponential race."""
