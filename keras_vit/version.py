"""The package version, which pyproject.toml reads without importing Keras."""

__version__ = "0.2.0"
"""The version of the package."""
