"""The conformance kit: tiny targets, stub proposers, laws, and the checks that a plugin's tests subclass.

Needs the extra `specdec-core[testing]`. Importing this package loads nothing heavy; take what you need from
`specdec.testing.targets`, `.table`, `.stubs`, `.recording`, `.laws`, `.contract` and `.identity`.
"""
