"""The conformance kit: tiny targets, stub proposers, laws, and the checks that a plugin's tests subclass.

Needs the distribution `specdec-testing`. This package loads nothing by itself; take what you need from its modules:
`contract` and `identity` (test classes to subclass), `targets` and `table` (models), `stubs`, `breakers` and
`recording` (proposers), `driving`, `fakes` and `checking` (a host in small), `laws` (chi-square).
"""

__version__ = "0.1.0"
