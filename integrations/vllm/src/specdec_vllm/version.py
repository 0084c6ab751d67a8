"""The version of this distribution; read by its build as well."""

__version__ = "0.1.0"
