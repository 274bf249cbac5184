"""Lamina over HTTP."""
