"""Training of Medusa heads (arXiv 2401.10774): what can be chosen, and the trainer."""
