"""Training of EAGLE-3 heads (arXiv 2503.01840): network, first weights, trainer; EAGLE-1 heads are not trained here."""
