import pytest
import tensorflow as tf

from tests.data.images import write_classes


@pytest.fixture(autouse=True, scope="module")
def _unoptimized_graphs():
    """Leaves out TensorFlow's optimizer of graphs, which takes longer than these small pipelines."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 24 images in four classes, which no test changes."""
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 24)
    return folder
