import keras
import numpy as np

from keras_vit.layers import PatchEmbedding, PositionEmbedding
from keras_vit.models.backbone import find_blocks
from keras_vit.models.graph import nodes_before


def fold_preprocessing(model: keras.Model) -> keras.Model:
    """Returns a copy of a ViT for inference that applies `(x / 255 - mean) / std` in its patch embedding.

    The copy takes the same raw images, has the same outputs within rounding, and is faster. Save the copy only as
    .keras; for other formats, save the original.

    Args:
        model: A float32 ViT that a builder of this package built with `include_preprocessing=True`. It is not changed.

    Raises:
        ValueError: If the model takes preprocessed images, is folded already, does not compute in float32, or has
            weights that its config does not describe. A model in which layers other than the patch embedding read the
            scaled images, such as a hybrid, is refused too.

    Example:

    >>> model = keras_vit.ViTTi16(num_classes=10, include_preprocessing=True)
    >>> folded = keras_vit.fold_preprocessing(model)
    >>> images = np.random.default_rng(0).uniform(0, 255, (1, 224, 224, 3))
    >>> outputs = [keras.ops.convert_to_numpy(m(images)) for m in (folded, model)]
    >>> bool(np.allclose(*outputs, atol=1e-4))
    True
    """
    normalization, embedding = _layers_to_fold(model)

    def clone(layer):
        changes = {"folded": True} if layer is normalization else {}
        return type(layer).from_config({**layer.get_config(), **changes})

    folded = keras.models.clone_model(model, clone_function=clone)
    values = {weight.path: weight for weight in model.weights}
    if {weight.path for weight in folded.weights} != set(values):
        raise ValueError(f"Expected a model whose config describes all its weights. Received: model {model.name!r}")
    for weight in folded.weights:
        # Copy the value. Training on JAX frees the arrays of the trained model, so the models must not share arrays.
        weight.assign(keras.ops.copy(values[weight.path]))

    offset, scale = (np.array(constants, "float64") for constants in normalization.preprocessing.offset_and_scale)
    kernel = keras.ops.convert_to_numpy(embedding.kernel).astype("float64") / scale[:, None]
    bias = keras.ops.convert_to_numpy(embedding.bias) - (kernel * offset[:, None]).sum(axis=(0, 1, 2))
    target = folded.get_layer(embedding.name)
    target.kernel.assign(kernel.astype("float32"))
    target.bias.assign(bias.astype("float32"))
    return folded


def _layers_to_fold(model):
    find_blocks(model, "vit")
    normalization, embedding = model.get_layer("normalization"), model.get_layer("patch_embedding")
    if not normalization.apply or normalization.folded or embedding.compute_dtype != "float32":
        raise ValueError(
            "Expected a float32 model built with include_preprocessing=True, and not folded yet. Received: model "
            f"{model.name!r} with include_preprocessing={normalization.apply}, folded={normalization.folded} and a "
            f"patch embedding in {embedding.compute_dtype}"
        )
    if not embedding.use_bias:
        raise ValueError(
            f"Expected a model with patch_bias=True, because folding changes this bias. Received: model {model.name!r}"
        )
    scaled = normalization.output
    readers = [operation for operation, inputs in nodes_before(model.outputs) if any(x is scaled for x in inputs)]
    # If a model takes images of any size, the position embedding also gets the images, but reads only their size.
    others = [reader.name for reader in readers if not isinstance(reader, (PatchEmbedding, PositionEmbedding))]
    if others or embedding not in readers or any(x is scaled for x in model.outputs):
        raise ValueError(
            "Expected a model in which only the patch embedding reads the scaled images. Received: model "
            f"{model.name!r}, in which {', '.join(others) or 'an output of the model'} reads them too."
        )
    return normalization, embedding
