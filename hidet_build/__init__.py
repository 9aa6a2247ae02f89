"""A declarative, Bazel-style build system for hidet kernels."""

__all__ = ["__version__"]

__version__ = "0.1.0"
