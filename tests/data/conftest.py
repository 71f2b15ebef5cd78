import pytest

from tests.data.images import write_classes


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 24 images in four classes, which no test changes."""
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 24)
    return folder
