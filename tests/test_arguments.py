import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit import arguments
from tests.errors import refuses

HUGE = 10**400
NOT_WHOLE = ("3", None, 1.5, True, (1,), float("nan"))
NOT_NUMBERS = (HUGE, float("nan"), float("inf"), "1", None, True, (1,))
WRONG = [
    (arguments.positive_int, (0, -1, *NOT_WHOLE), "an integer of at least 1."),
    (arguments.non_negative_int, (-1, *NOT_WHOLE), "an integer of at least 0."),
    (arguments.positive_int, (HUGE,), "an integer of at most .*"),
    (arguments.pair, (0, (0, 2), (2, -1), (2,), (1, 2, 3), "23", None, (2, 1.5), ()), "an integer .*"),
    (arguments.rate, (1, 1.0, -0.1, 2, float("nan"), "0.1", None, True), r"a number in \[0, 1\)."),
    (arguments.share, (-0.1, 1.1, *NOT_NUMBERS), "a number from 0 to 1."),
    (arguments.fraction, (0, 1, *NOT_NUMBERS), r"a number in \(0, 1\)."),
    (arguments.non_negative_number, (-1, *NOT_NUMBERS), "a number of at least 0."),
    (arguments.boolean, (0, "yes", None, np.array(True)), "a bool."),
    (arguments.several, ("ab", b"ab", 5, None, {"a"}, {"a": 1}), "a sequence of values."),
    (arguments.path, (5, None, ["a"]), "a path."),
    (arguments.number, NOT_NUMBERS, "a finite number."),
    (arguments.positive_number, (0, -1e-6, *NOT_NUMBERS), "a number above 0."),
]
VALID = [
    (arguments.positive_int, (1, 7, np.int64(7), np.array(7)), int),
    (arguments.non_negative_int, (0, 1, np.int64(7)), int),
    (arguments.rate, (0, 0.0, 0.5, np.float32(0.25), 0.999), float),
    (arguments.number, (-1, np.array(0.5)), float),
    (arguments.share, (0, 1, np.float32(0.25)), float),
    (arguments.fraction, (0.5,), float),
    (arguments.non_negative_number, (0, 7.5), float),
    (arguments.boolean, (True, np.False_), bool),
    (arguments.positive_number, (np.float32(0.5),), float),
]


@pytest.mark.parametrize("check, values, kind", VALID)
def test_argument_check_returns_valid_values(check, values, kind):
    for value in values:
        assert check("x", value) == value and type(check("x", value)) is kind


def test_pair_accepts_one_integer_or_two():
    assert [arguments.pair("x", value) for value in (4, (2, 3), [2, 3])] == [(4, 4), (2, 3), (2, 3)]


@pytest.mark.parametrize("check, values, expected", WRONG)
def test_argument_check_refuses_wrong_values(check, values, expected):
    for value in values:
        refuses(f"`x`. Expected {expected} Received: ", check, "x", value)


def test_nearest_suggests_similar_names():
    known = ("finetune_pets", "finetune_flowers", "deit_tiny", None)
    assert arguments.nearest("FineTune-pet", known) == ". Did you mean 'finetune_pets'?"
    two = arguments.nearest("finetune", known, most=2)
    assert "finetune_pets" in two and "finetune_flowers" in two and "deit" not in two
    for name in ("mae", 5, None):
        assert arguments.nearest(name, known) == ""
    with pytest.raises(
        ValueError, match=r"`pooling`. Expected one of 'gap', None. Received: 'Gap'. Did you mean 'gap'\?$"
    ):
        arguments.choice("pooling", "Gap", ("gap", None))


def test_seeds_of_neighbours_differ():
    assert arguments.seeds(None, 3) == [None, None, None]
    assert len({seed for i in range(100) for seed in arguments.seeds(i, 5)}) == 500
    refuses("`seed`. Expected an integer of at least 0. Received: -1", arguments.seeds, -1, 2)
    assert arguments.seeds(7, 5) == arguments.seeds(7, 5) and max(arguments.seeds(7, 99)) < 2**31


@given(*[st.integers(1, 100)] * 4)
def test_grid_size_counts_whole_patches(height, width, patch_height, patch_width):
    image_size, patch_size = (height, width), (patch_height, patch_width)
    if height < patch_height or width < patch_width:
        with pytest.raises(ValueError, match=r"Expected images of at least one patch, .* Received: images of"):
            arguments.grid_size(image_size, patch_size)
        return
    rows, columns = arguments.grid_size(image_size, patch_size)
    assert rows == len(range(0, height - patch_height + 1, patch_height))
    assert columns == len(range(0, width - patch_width + 1, patch_width))
    assert arguments.num_patches((rows, columns)) == rows * columns


def test_grid_size_with_unknown_side_and_with_stride():
    assert arguments.grid_size((None, 32), (16, 16)) == (None, 2)
    assert arguments.grid_size((32, None), (16, 16)) == (2, None)
    assert arguments.num_patches((None, 2)) is None
    # The known side is still checked.
    refuses("at least one patch", arguments.grid_size, (None, 15), (16, 16))
    assert arguments.grid_size((224, 65), (1, 2), stride=32) == (7, 1)
    refuses("at least one patch, 1 x 33 pixels", arguments.grid_size, (224, 32), (1, 2), stride=32)
