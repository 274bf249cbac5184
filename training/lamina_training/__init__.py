"""Offline training and export: the only package that imports torch."""
