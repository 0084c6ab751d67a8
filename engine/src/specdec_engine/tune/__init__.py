"""`specdec tune`: chooses method and number of drafts by measured costs and acceptance."""
