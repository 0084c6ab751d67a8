"""Whole verifications, one op a rule: from logits and drafts on a device to accepted paths and last ids there."""
