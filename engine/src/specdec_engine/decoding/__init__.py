"""The decode step: scheduling, drafts on their way into a forward, the target, verification, commit."""
