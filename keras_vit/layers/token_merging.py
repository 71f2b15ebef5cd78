"""Token merging: in a block the patches that are most alike become one, which counts as often as they would.

It needs no weights and no sort, gather or scatter, which are slow on some backends and formats: each token is told its
place in the shorter sequence, and one matrix product brings it there.

Reference: [arXiv 2210.09461](https://arxiv.org/abs/2210.09461), section 3.
"""

from keras import ops


def num_merged(num_tokens, token_merging, num_prefix_tokens=0):
    """How many tokens a block merges: at most half of the patches.

    Args:
        num_tokens: Int, prefix tokens included; a tensor, or None, where it is known at run time only.
        token_merging: Int, how many it is to merge.
        num_prefix_tokens: Int, how many tokens stand before the patches.

    Returns:
        Int, a tensor or None, as `num_tokens`.

    Example:

    >>> from keras_vit.layers.token_merging import num_merged
    >>> num_merged(197, 16, num_prefix_tokens=1), num_merged(11, 16, num_prefix_tokens=1)
    (16, 5)
    """
    if num_tokens is None:
        return None
    half = (num_tokens - num_prefix_tokens) // 2
    return min(token_merging, half) if isinstance(half, int) else ops.minimum(token_merging, half)


def match(keys, token_merging, num_prefix_tokens=0):
    """Chooses by bipartite soft matching the tokens that merge.

    Of the patches every second one looks for the one most like it among the others, by the cosine of their keys; of
    these pairs the most alike merge. Of equal pairs the first does. No gradient goes through the choice.

    Args:
        keys: What each token is compared by, (batch, num_tokens, channels).
        token_merging: Int, how many tokens merge, at most half of the patches; there are two at least.
        num_prefix_tokens: Int, how many tokens stand before the patches; they never merge.

    Returns:
        The place of each token in the shorter sequence, (batch, num_tokens), int32: first the prefix, then the patches
        that looked and stay, then those that were looked at.

    Example:

    >>> from keras_vit.layers.token_merging import match
    >>> keys = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.1, 1.0]]])
    >>> ops.convert_to_numpy(match(keys, token_merging=1)).tolist()  # the last joins the third
    [[1, 0, 2, 2]]
    """
    keys = ops.stop_gradient(ops.cast(keys, "float32"))
    keys = ops.normalize(keys[:, num_prefix_tokens:], axis=-1)
    targets, sources = keys[:, 0::2], keys[:, 1::2]
    similarity = ops.matmul(sources, ops.transpose(targets, (0, 2, 1)))
    target = ops.cast(ops.argmax(similarity, axis=-1), "int32")
    # And not by `ops.max`, which refuses a single patch on TensorFlow and, with `initial`, no images on PyTorch.
    is_target = ops.equal(target[:, :, None], ops.arange(ops.shape(targets)[1], dtype="int32"))
    best = ops.sum(ops.where(is_target, similarity, 0.0), axis=-1)

    batch, num_sources = ops.shape(best)
    index = ops.arange(num_sources, dtype="int32")
    other, own = best[:, None, :], best[:, :, None]
    is_ahead = ops.logical_or(other > own, ops.logical_and(ops.equal(other, own), index[None, :] < index[:, None]))
    merges = ops.sum(ops.cast(is_ahead, "int32"), axis=-1) < token_merging

    num_kept = num_prefix_tokens + num_sources - token_merging
    place_if_kept = num_prefix_tokens - 1 + ops.cumsum(ops.cast(ops.logical_not(merges), "int32"), axis=1)
    of_sources = ops.where(merges, num_kept + target, place_if_kept)
    of_targets = num_kept + ops.arange(ops.shape(targets)[1], dtype="int32")
    of_targets = ops.broadcast_to(of_targets, (batch, ops.shape(targets)[1]))
    # Back to the order of the patches, by turns. Of an odd number the last has no partner; any number stands for it.
    num_patches, num_targets = ops.shape(keys)[1], ops.shape(targets)[1]
    of_sources = ops.concatenate([of_sources, of_targets[:, : num_targets - num_sources]], axis=1)
    places = ops.reshape(ops.stack([of_targets, of_sources], axis=2), (-1, 2 * num_targets))[:, :num_patches]
    if not num_prefix_tokens:
        return places
    prefix = ops.broadcast_to(ops.arange(num_prefix_tokens, dtype="int32"), (batch, num_prefix_tokens))
    return ops.concatenate([prefix, places], axis=1)


def merge(tokens, sizes, places, num_left):
    """Takes tokens to their places in a shorter sequence; those that share one become their mean, weighted by size.

    Args:
        tokens: (batch, num_tokens, hidden_dim).
        sizes: (batch, num_tokens), how many patches each stands for; None: one each.
        places: (batch, num_tokens), each less than `num_left`, and each of these in use.
        num_left: Int, the length of the shorter sequence.

    Returns:
        Tokens, (batch, num_left, hidden_dim), and their sizes, (batch, num_left), float32.

    Example:

    >>> from keras_vit.layers.token_merging import merge
    >>> tokens, sizes = merge(np.array([[[1.0], [2.0], [6.0]]]), np.array([[1, 3, 1]]), np.array([[0, 1, 1]]), 2)
    >>> ops.convert_to_numpy(tokens).tolist(), ops.convert_to_numpy(sizes).tolist()
    ([[[1.0], [3.0]]], [[1.0, 4.0]])
    """
    is_here = ops.equal(places[:, None, :], ops.arange(num_left, dtype="int32")[:, None])
    weights = ops.cast(is_here, "float32")
    if sizes is not None:
        weights = weights * ops.cast(sizes, "float32")[:, None, :]
    sizes = ops.sum(weights, axis=-1)
    # Of a token that stays alone the weight is exactly 1, so that it comes out as it was.
    weights = ops.cast(weights / sizes[:, :, None], tokens.dtype)
    return ops.matmul(weights, tokens), sizes
