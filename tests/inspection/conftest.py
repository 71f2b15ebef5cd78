import numpy as np
import pytest

import keras_vit


@pytest.fixture(scope="session")
def real(shared):
    """The published ViT-B/16, the picture of cats as it takes it, and what was computed of the two elsewhere."""
    weights = shared / "weights"
    # The figures were computed with exact GELU, the official weights' is the approximation.
    model = keras_vit.from_pretrained(weights / "ViT-B_16-224.npz", activation="gelu")
    with np.load(weights / "ViT-B_16-224.reference.npz") as file:
        images = keras_vit.preprocess_input(file["images"][:1], model)
    with np.load(weights / "ViT-B_16-224.inspection.npz") as file:
        return model, images, dict(file)
