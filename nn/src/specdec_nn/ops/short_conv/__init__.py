"""The op `short_conv`: a causal convolution along each request's rows, each channel by itself."""
