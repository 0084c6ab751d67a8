"""The networks of MTP modules, on torch: their wiring by family, their blocks, and the head that drafts."""
