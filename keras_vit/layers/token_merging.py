"""Token merging (ToMe, arXiv 2210.09461, section 3): merges the most similar patches into their weighted mean."""

from keras import ops

# Merge by a matrix product, because sort, gather and scatter are slow on some backends and in some export formats.


def num_merged(num_tokens, token_merging, num_prefix_tokens=0):
    """Returns the number of patches to merge: the smaller of `token_merging` and half of the patches.

    `num_tokens` may be a tensor. If it is None, the number of patches is unknown, and the result is None too.
    """
    if num_tokens is None:
        return None
    half = (num_tokens - num_prefix_tokens) // 2
    return min(token_merging, half) if isinstance(half, int) else ops.minimum(token_merging, half)


def match(keys, token_merging, num_prefix_tokens=0):
    """Matches similar patches. Returns the index that each token will have after the merge: (batch, num_tokens), int32.

    Patches that get the same index will be merged.
    """
    # Find for each patch of odd index the patch of even index with the highest cosine similarity. The `token_merging`
    # most similar pairs merge. After the merge, the order is: prefix tokens, patches of odd index that do not merge,
    # patches of even index.
    keys = ops.stop_gradient(ops.cast(keys, "float32"))
    keys = ops.normalize(keys[:, num_prefix_tokens:], axis=-1)
    targets, sources = keys[:, 0::2], keys[:, 1::2]
    similarity = ops.matmul(sources, ops.transpose(targets, (0, 2, 1)))
    target = ops.cast(ops.argmax(similarity, axis=-1), "int32")
    # Do not use ops.max. It fails for a single patch on TensorFlow and, with `initial`, for an empty batch on PyTorch.
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
    # Interleave the two lists of new indices, so that they are in the patches' original order. If the number of patches
    # is odd, the list for patches of odd index is shorter by one. So append a dummy index to it, and remove it
    # afterwards.
    num_patches, num_targets = ops.shape(keys)[1], ops.shape(targets)[1]
    of_sources = ops.concatenate([of_sources, of_targets[:, : num_targets - num_sources]], axis=1)
    places = ops.reshape(ops.stack([of_targets, of_sources], axis=2), (-1, 2 * num_targets))[:, :num_patches]
    if not num_prefix_tokens:
        return places
    prefix = ops.broadcast_to(ops.arange(num_prefix_tokens, dtype="int32"), (batch, num_prefix_tokens))
    return ops.concatenate([prefix, places], axis=1)


def merge(tokens, sizes, places, num_left):
    """Averages the tokens that have the same index in `places`; returns the `num_left` averages and their sizes.

    `sizes` are the weights of the tokens in the averages; None means that each token has the weight 1. The new size of
    a token is the sum of the sizes of the tokens in its average.
    """
    is_here = ops.equal(places[:, None, :], ops.arange(num_left, dtype="int32")[:, None])
    weights = ops.cast(is_here, "float32")
    if sizes is not None:
        weights = weights * ops.cast(sizes, "float32")[:, None, :]
    sizes = ops.sum(weights, axis=-1)
    # A token that is not merged has a weight of exactly 1, so it stays unchanged.
    weights = ops.cast(weights / sizes[:, :, None], tokens.dtype)
    return ops.matmul(weights, tokens), sizes
