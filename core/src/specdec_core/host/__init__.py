"""The host half of the contract, written once: what every engine that runs proposers shares.

`factory` builds the objects of a session, `budget` says how many drafts each request may get, `rows` keeps committed
rows until the proposer gets them, `containment` keeps a plugin's errors away from the engine, and `runner` puts them
together: `ProposerRunner` is all that a decoding loop calls. `docs/hosting.md` shows a whole host.
"""
