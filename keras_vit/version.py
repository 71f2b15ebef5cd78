"""The package version, which pyproject.toml reads without importing Keras."""

__version__ = "0.3.0"
"""The version of the package."""
