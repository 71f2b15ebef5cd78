import keras
import numpy as np
import pytest

from keras_vit.pretraining import masking


def numpy(tensors):
    return [keras.ops.convert_to_numpy(t) for t in tensors]


def assert_share(count, total, share):
    """Within three standard deviations of a binomial distribution."""
    assert abs(count / total - share) < 3 * np.sqrt(share * (1 - share) / total)


@pytest.mark.parametrize("num_patches", [196, 49])
def test_corruption_has_the_papers_shares(num_patches):
    images = 100_000 // num_patches + 1
    kind, source = numpy(masking.corruption(images, num_patches, seed=0))
    counts = np.bincount(kind.ravel(), minlength=4)
    corrupted = counts.sum() - counts[masking.UNTOUCHED]
    assert counts.sum() >= 100_000
    assert_share(corrupted, counts.sum(), 0.5)
    assert_share(counts[masking.MASKED], corrupted, 0.8)
    assert_share(counts[masking.SWAPPED], corrupted, 0.1)
    assert_share(counts[masking.KEPT], corrupted, 0.1)
    # An exact count in each image, up or down where half of the patches is no whole number.
    assert set((kind != masking.UNTOUCHED).sum(axis=1)) == {num_patches // 2, (num_patches + 1) // 2}
    # Each place is as likely, and so is each other patch.
    assert np.abs((kind != masking.UNTOUCHED).mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(images)
    own = np.arange(num_patches)
    assert (source != own).all() and source.min() == 0 and source.max() == num_patches - 1
    steps = np.bincount(((source - own) % num_patches).ravel(), minlength=num_patches)[1:]
    expected = source.size / (num_patches - 1)
    assert np.abs(steps - expected).max() < 5 * np.sqrt(expected)


def test_corruption_takes_other_shares():
    kind, _ = numpy(masking.corruption(500, 20, seed=1, mask_ratio=0.25, masked_share=0.0, swapped_share=1.0))
    assert ((kind == masking.SWAPPED).sum(axis=1) == 5).all()
    assert set(kind.ravel()) == {masking.UNTOUCHED, masking.SWAPPED}


DRAWS = [
    lambda seed: masking.corruption(3, 40, seed),
    lambda seed: [masking.random_mask(3, 40, 20, seed)],
    lambda seed: [masking.unit_mask(3, (8, 8), (2, 2), 0.5, seed)],
    lambda seed: masking.shuffle(3, 40, 10, seed),
]


@pytest.mark.parametrize("draw", DRAWS, ids=["corruption", "random_mask", "unit_mask", "shuffle"])
def test_seeds_reproduce(draw):
    first, again, other = numpy(draw(7)), numpy(draw(7)), numpy(draw(8))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
    generators = [keras.random.SeedGenerator(7) for _ in range(2)]
    drawn = [numpy(draw(generators[0])), numpy(draw(generators[0])), numpy(draw(generators[1]))]
    assert all((a == b).all() for a, b in zip(drawn[0], drawn[2], strict=True))
    assert any((a != b).any() for a, b in zip(drawn[0], drawn[1], strict=True)), "a generator moves on"
    # Images of one batch differ.
    assert (first[0][0] != first[0][1]).any()


def test_random_mask_is_exact_and_even():
    (mask,) = numpy([masking.random_mask(2000, 10, 3, seed=0)])
    assert (mask.sum(axis=1) == 3).all()
    assert np.abs(mask.mean(axis=0) - 0.3).max() < 5 * np.sqrt(0.21 / 2000)


def test_unit_mask_covers_whole_aligned_units():
    (mask,) = numpy([masking.unit_mask(50, (6, 8), (2, 4), 0.6, seed=0)])
    units = mask.reshape(50, 3, 2, 2, 4).transpose(0, 1, 3, 2, 4).reshape(50, 6, 8)
    assert (units.all(axis=2) == units.any(axis=2)).all()
    # 60% of 6 units, rounded up, as the official code rounds.
    assert (units.all(axis=2).sum(axis=1) == 4).all()


def test_unit_mask_cuts_units_at_the_edge():
    (mask,) = numpy([masking.unit_mask(50, (3, 5), (2, 2), 0.5, seed=0)])
    grid = mask.reshape(50, 3, 5)
    padded = np.pad(grid, ((0, 0), (0, 1), (0, 1)), mode="edge").reshape(50, 2, 2, 3, 2)
    assert (padded.all(axis=(2, 4)) == padded.any(axis=(2, 4))).all()
    assert (padded.all(axis=(2, 4)).sum(axis=(1, 2)) == 3).all()


def test_binary_rounding_masks_no_unit_more():
    # 0.7 * 10 is above 7 in binary.
    (mask,) = numpy([masking.unit_mask(1, (2, 5), (1, 1), 0.7, seed=0)])
    assert mask.sum() == 7


def test_shuffle_can_be_undone():
    kept, restore, mask = numpy(masking.shuffle(20, 12, 5, seed=0))
    assert (mask.sum(axis=1) == 7).all()
    everything = np.arange(12)
    for k, r, m in zip(kept, restore, mask, strict=True):
        assert sorted(k) == sorted(everything[~m])
        shuffled = np.concatenate([k, np.full(7, -1)])
        np.testing.assert_array_equal(shuffled[r], np.where(m, -1, everything))
