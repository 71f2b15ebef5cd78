import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_vit.data import batching, from_dataframe
from tests.data.images import jpeg


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    (folder / "sound").write_bytes(jpeg(9))
    (folder / "broken").write_bytes(jpeg(9)[:200])
    return folder


@settings(max_examples=6)
@given(
    window=st.sampled_from([4, 2048]),
    broken=st.sets(st.integers(0, 9), max_size=9),
    batch_size=st.integers(1, 5),
    skip_batches=st.integers(0, 5),
    options=st.sampled_from([{}, {"repeat": True}, {"drop_remainder": True}, {"cache": True}]),
)
# Whole batches, the first and the last among them; more than an epoch's end; none.
@example(2048, {0, 1, 2, 3, 8, 9}, 2, 0, {})
@example(4, {0, 1, 2, 8, 9}, 3, 1, {"repeat": True})
@example(4, set(), 4, 0, {})
def test_batches_are_the_sound_images_in_order(folder, window, broken, batch_size, skip_batches, options):
    table = {"path": ["broken" if i in broken else "sound" for i in range(10)], "label": list(range(10))}
    options = {**options, "batch_size": batch_size, "skip_batches": skip_batches, "image_size": 8, "training": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "WINDOW", window)
        data = from_dataframe(table, directory=folder, num_classes=10, **options)
    repeat, drop = options.get("repeat"), options.get("drop_remainder")
    # Two epochs, since nothing may be left of the first.
    found = [labels.numpy().tolist() for _, labels in (data.take(9) if repeat else itertools.chain(data, data))]

    def sound(start, count=10):
        return [i % 10 for i in range(start, start + count) if i % 10 not in broken]

    def full(numbers, keep_rest):
        groups = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
        return [group for group in groups if keep_rest or len(group) == batch_size]

    if repeat:
        expected = full(sound(skip_batches * batch_size, 1000), False)[:9]
    else:
        start = skip_batches % (10 // batch_size if drop else -(-10 // batch_size)) * batch_size
        expected = full(sound(start, 10 - start), not drop) + full(sound(0), not drop)
    assert found == expected
