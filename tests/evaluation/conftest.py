import pytest

from tests.tiny import build


@pytest.fixture(scope="session")
def model():
    """A tiny ViT of five classes that no test changes."""
    return build()
