"""Token merging (ToMe): in a block the patches that are most alike become one, weighted by the number of patches.

It needs no weights, and no sort, gather or scatter, which are slow on some backends and formats: each token gets its
place in the shorter sequence, and one matrix product moves it there.

Reference: [arXiv 2210.09461](https://arxiv.org/abs/2210.09461), section 3.
"""

from keras import ops


def num_merged(num_tokens, token_merging, num_prefix_tokens=0):
    """How many tokens a block merges: at most half of the patches. `num_tokens` may be a tensor or None."""
    if num_tokens is None:
        return None
    half = (num_tokens - num_prefix_tokens) // 2
    return min(token_merging, half) if isinstance(half, int) else ops.minimum(token_merging, half)


def match(keys, token_merging, num_prefix_tokens=0):
    """Chooses the tokens that merge by bipartite soft matching, from their keys, (batch, num_tokens, channels).

    Every second patch looks for the most similar one among the others, by the cosine of their keys; the
    `token_merging` most similar pairs merge, the first of equal ones. No gradient goes through the choice.

    Returns:
        The place of each token in the shorter sequence, (batch, num_tokens), int32: first the prefix, then the patches
        that looked and stay, then the others.
    """
    keys = ops.stop_gradient(ops.cast(keys, "float32"))
    keys = ops.normalize(keys[:, num_prefix_tokens:], axis=-1)
    targets, sources = keys[:, 0::2], keys[:, 1::2]
    similarity = ops.matmul(sources, ops.transpose(targets, (0, 2, 1)))
    target = ops.cast(ops.argmax(similarity, axis=-1), "int32")
    # ops.max refuses a single patch on TensorFlow and, with `initial`, no images on PyTorch.
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
    # Back to the order of the patches, by turns. If their number is odd, a filler stands for the last one's partner.
    num_patches, num_targets = ops.shape(keys)[1], ops.shape(targets)[1]
    of_sources = ops.concatenate([of_sources, of_targets[:, : num_targets - num_sources]], axis=1)
    places = ops.reshape(ops.stack([of_targets, of_sources], axis=2), (-1, 2 * num_targets))[:, :num_patches]
    if not num_prefix_tokens:
        return places
    prefix = ops.broadcast_to(ops.arange(num_prefix_tokens, dtype="int32"), (batch, num_prefix_tokens))
    return ops.concatenate([prefix, places], axis=1)


def merge(tokens, sizes, places, num_left):
    """Moves tokens to their places in a sequence of `num_left`; those that share one become their weighted mean.

    Returns the tokens and their sizes, (batch, num_left), float32. None as `sizes` is one patch each.
    """
    is_here = ops.equal(places[:, None, :], ops.arange(num_left, dtype="int32")[:, None])
    weights = ops.cast(is_here, "float32")
    if sizes is not None:
        weights = weights * ops.cast(sizes, "float32")[:, None, :]
    sizes = ops.sum(weights, axis=-1)
    # The weight of a token that stays alone is exactly 1, so that it does not change.
    weights = ops.cast(weights / sizes[:, :, None], tokens.dtype)
    return ops.matmul(weights, tokens), sizes
