"""Lamina's ground floor: encode, index, search and evaluate, without torch and without a server."""

__version__ = "0.1.0"
