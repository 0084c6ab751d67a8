"""The op `linear`: a linear layer whose rows do not depend on their neighbours."""
