def is_decayed(path: str) -> bool:
    """Whether weight decay acts on a variable: on kernels, and on nothing else.

    Biases, the scales and offsets of norms, layer scale, tokens (class, distillation, registers, probe) and position
    embeddings, absolute or relative, keep their values.

    Args:
        path: String, the variable's `path`.

    Returns:
        Bool.

    Example:

    >>> is_decayed("block_00/attention/qkv/kernel"), is_decayed("block_00/attention/qkv/bias")
    (True, False)

    Reference: `wd_mults` of big_vision, which decays `.*/kernel` too; DeiT, which excludes vectors, tokens and position
        embeddings, comes to the same weights.
    """
    # Also depthwise_kernel, lora_kernel_a and the like.
    return "kernel" in path.rsplit("/", 1)[-1]


def decay_groups(model):
    """Splits a model's trainable variables into those that weight decay acts on and the others.

    Args:
        model: A `keras.Model` or layer.

    Returns:
        (decayed, not decayed), two lists of variables that together are `model.trainable_variables`.

    Example:

    >>> decayed, kept = decay_groups(keras_vit.ViT("Ti/16", num_layers=1))
    >>> len(decayed), len(kept)
    (6, 14)
    """
    groups = [], []
    for variable in model.trainable_variables:
        groups[not is_decayed(variable.path)].append(variable)
    return groups
