"""Training of one recursive MTP layer (FastMTP, arXiv 2509.18362): what can be chosen, and the trainer."""
