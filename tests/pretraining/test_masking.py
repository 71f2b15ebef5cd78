import keras
import numpy as np
import pytest

from keras_vit.pretraining import masking

# Half of 41 patches is no whole number, so the number of corrupted patches is random too.
DRAWS = {
    "corruption": lambda seed: masking.corruption(3, 41, seed),
    "random_mask": lambda seed: [masking.random_mask(3, 41, 20, seed)],
    "unit_mask": lambda seed: [masking.unit_mask(3, (8, 8), (2, 2), 0.5, seed)],
    "shuffle": lambda seed: masking.shuffle(3, 41, 10, seed),
}


def numpy(tensors):
    return [keras.ops.convert_to_numpy(t) for t in tensors]


def assert_share(count, total, share):
    """Within three standard deviations of a binomial distribution."""
    assert abs(count / total - share) < 3 * np.sqrt(share * (1 - share) / total)


@pytest.mark.parametrize("num_patches", [196, 49])
def test_corruption_has_the_shares_of_the_paper(num_patches):
    images = 100_000 // num_patches + 1
    kind, source = numpy(masking.corruption(images, num_patches, seed=0))
    counts = np.bincount(kind.ravel(), minlength=4)
    corrupted = counts.sum() - counts[masking.UNTOUCHED]
    assert counts.sum() >= 100_000
    assert_share(corrupted, counts.sum(), 0.5)
    assert_share(counts[masking.MASKED], corrupted, 0.8)
    assert_share(counts[masking.SWAPPED], corrupted, 0.1)
    assert_share(counts[masking.KEPT], corrupted, 0.1)
    # Each image has exactly half of its patches corrupted, rounded up or down.
    assert set((kind != masking.UNTOUCHED).sum(axis=1)) == {num_patches // 2, (num_patches + 1) // 2}
    # All places and all other patches are equally likely.
    assert np.abs((kind != masking.UNTOUCHED).mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(images)
    own = np.arange(num_patches)
    assert (source != own).all() and source.min() == 0 and source.max() == num_patches - 1
    steps = np.bincount(((source - own) % num_patches).ravel(), minlength=num_patches)[1:]
    expected = source.size / (num_patches - 1)
    assert np.abs(steps - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seeds_reproduce_every_draw(draw):
    first, other = numpy(draw(7)), numpy(draw(8))
    for _ in range(3):
        assert all((a == b).all() for a, b in zip(first, numpy(draw(7)), strict=True))
    assert all((a != b).any() for a, b in zip(first, other, strict=True))
    generators = [keras.random.SeedGenerator(7) for _ in range(2)]
    drawn = [numpy(draw(generators[0])), numpy(draw(generators[0])), numpy(draw(generators[1]))]
    assert all((a == b).all() for a, b in zip(drawn[0], drawn[2], strict=True))
    assert all((a != b).any() for a, b in zip(drawn[0], drawn[1], strict=True)), "a generator repeats its draw"
    # Images of one batch differ.
    assert all((mask[0] != mask[1]).any() for mask in first)


def test_corruption_from_one_seed_draws_independent_streams():
    # Two or three of 5 patches are corrupted; a corrupted patch is swapped or kept.
    drawn = [masking.corruption(1, 5, seed, masked_share=0.0, swapped_share=0.5) for seed in range(300)]
    kind, source = (np.stack([keras.ops.convert_to_numpy(d[i])[0] for d in drawn]) for i in range(2))
    corrupted = kind != masking.UNTOUCHED
    count = corrupted.sum(axis=1)
    assert set(count) == {2, 3}
    for patch in range(5):
        rows = corrupted[:, patch]
        swapped = (kind[:, patch] == masking.SWAPPED)[rows]
        step = (source[:, patch] - patch) % 5
        pairs = [(count[rows], swapped), (swapped, step[rows]), (count, step), (rows, step)]
        assert np.abs([np.corrcoef(a, b)[0, 1] for a, b in pairs]).max() < 0.3, patch
        # A patch is corrupted in 2 / 5 or 3 / 5 of the images with 2 or 3 corrupted patches.
        assert [rows[count == n].mean() for n in (2, 3)] == pytest.approx([0.4, 0.6], abs=0.17)


def test_unit_mask_covers_whole_aligned_units():
    (mask,) = numpy([masking.unit_mask(50, (6, 8), (2, 4), 0.6, seed=0)])
    units = mask.reshape(50, 3, 2, 2, 4).transpose(0, 1, 3, 2, 4).reshape(50, 6, 8)
    assert (units.all(axis=2) == units.any(axis=2)).all()
    # The official code rounds 60% of 6 units up.
    assert (units.all(axis=2).sum(axis=1) == 4).all()
    # The product 0.7 * 10 is slightly above 7 in floating point.
    (mask,) = numpy([masking.unit_mask(1, (2, 5), (1, 1), 0.7, seed=0)])
    assert mask.sum() == 7


def test_unit_mask_cuts_units_at_the_edge():
    (mask,) = numpy([masking.unit_mask(50, (3, 5), (2, 2), 0.5, seed=0)])
    grid = mask.reshape(50, 3, 5)
    padded = np.pad(grid, ((0, 0), (0, 1), (0, 1)), mode="edge").reshape(50, 2, 2, 3, 2)
    assert (padded.all(axis=(2, 4)) == padded.any(axis=(2, 4))).all()
    assert (padded.all(axis=(2, 4)).sum(axis=(1, 2)) == 3).all()


def test_restore_undoes_shuffle():
    kept, restore, mask = numpy(masking.shuffle(20, 12, 5, seed=0))
    assert (mask.sum(axis=1) == 7).all()
    everything = np.arange(12)
    for k, r, m in zip(kept, restore, mask, strict=True):
        assert sorted(k) == sorted(everything[~m])
        np.testing.assert_array_equal(np.concatenate([k, np.full(7, -1)])[r], np.where(m, -1, everything))
