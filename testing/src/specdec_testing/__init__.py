"""The conformance kit: tiny targets, stub proposers, distributions, and the checks that a plugin's tests subclass.

Needs the distribution `specdec-testing`. This package loads nothing by itself; take what you need from its modules:
`method` (`MethodContract`, the one class that a method's author subclasses) and its parts `contract` and `identity`,
`host` (the class for engines), `targets` and `table` (models), `stubs`, `breakers` and `recording` (proposers),
`driving`, `fakes` and `checking` (a host without a target), `distributions` (chi-square). pytest loads `pytest_plugin`.
"""

__version__ = "0.1.0"
