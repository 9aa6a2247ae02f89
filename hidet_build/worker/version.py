"""The version of our own lower and codegen steps: part of hidet's identity, so part of keys. Imports nothing."""

# Raise it with every change of the worker that can change what a step writes. tests/test_worker_version.py holds the
# digest of the worker's code and fails when the code changed and this number did not.
STEP_VERSION = 3
