import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.inspection.watch import only_one, sublayers
from keras_vit.layers import ImageNormalization, PatchEmbedding, StandardizedConv2D

FIGURE_7 = 28


def embedding_filters(model: keras.Model, number: int | None = None) -> np.ndarray:
    """Returns the principal components of the filters that look at the image's pixels.

    These are the patch embedding's, or, in a hybrid, whose patches are cut out of a feature map, those of the ResNet's
    first convolution, standardized as it applies them.

    Args:
        model: Any model that holds one ViT of this package, as in `attention_maps`.
        number: Int, how many components. None gives the paper's 28, or all where there are fewer.

    Returns:
        (number, height, width, channels), float32, each of length 1, by falling variance. A component's sign means
        nothing; its largest number is made positive.

    Raises:
        ValueError: If the model holds no patch embedding, or several, or has fewer components than `number`, or its
            preprocessing is folded.

    Example:

    >>> embedding_filters(keras_vit.ViTTi16(), number=8).shape
    (8, 16, 16, 3)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 left.
    """
    embedding = only_one(model, PatchEmbedding)
    if any(layer.folded for layer in sublayers(model, ImageNormalization)):
        raise ValueError(
            "Expected a model whose preprocessing is not folded into its filters. Received: model "
            f"{model.name!r}; pass the one that fold_preprocessing was called on."
        )
    root = next((layer for layer in sublayers(model, StandardizedConv2D) if layer.name == "root_conv"), None)
    kernel = ops.convert_to_numpy(embedding.kernel if root is None else root.standardized_kernel())
    *shape, num_filters = kernel.shape
    filters = kernel.reshape(-1, num_filters).T.astype("float32")
    most = min(filters.shape)
    number = min(FIGURE_7, most) if number is None else arguments.positive_int("number", number)
    if number > most:
        raise ValueError(f"Expected `number` of at most {most}, the components that there are. Received: {number}")
    components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)[2][:number]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    return (components * np.sign(largest)).reshape(number, *shape)
