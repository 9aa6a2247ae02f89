"""Compilers, commands and hidet as they are found on this machine, each with its identity."""
