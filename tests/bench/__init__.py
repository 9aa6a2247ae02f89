"""Measurements: scripts that print ratios, never run by the tests."""
