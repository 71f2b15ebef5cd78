import numpy as np
import pytest

import keras_vit


@pytest.fixture(scope="session")
def real(shared):
    """Returns the published ViT-B/16, a preprocessed picture of cats, and reference values of the two."""
    weights = shared / "weights"
    # The reference values were computed with exact GELU. The default of the official weights is the approximation.
    model = keras_vit.from_pretrained(weights / "ViT-B_16-224.npz", activation="gelu")
    with np.load(weights / "ViT-B_16-224.reference.npz") as file:
        images = keras_vit.preprocess_input(file["images"][:1], model)
    with np.load(weights / "ViT-B_16-224.inspection.npz") as file:
        return model, images, dict(file)
