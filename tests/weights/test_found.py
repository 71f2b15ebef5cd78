import pytest

from keras_vit.weights.found import DEFAULT, KNOWN, STATED, Found
from tests.errors import refuses


@pytest.fixture
def found():
    found = Found("model.pth")
    found.put(STATED, num_layers=2)
    found.put(f"{DEFAULT} timm", certain=False, pooling="token")
    found.leave("such files do not contain it", "activation", "num_heads", "preprocessing")
    return found


def test_resolve_lists_every_unknown_field(found):
    message = r"(?s)'model.pth' does not state 3 .*Pass preprocessing=, num_heads=, activation= to .*\n  activation: s"
    refuses(message, found.resolve, {})
    refuses("does not state 1 .*Pass preprocessing= to", found.resolve, {"activation": "gelu", "num_heads": None})


def test_given_values_override_the_file(found):
    given = {"activation": "gelu", "num_heads": 3, "preprocessing": None, "num_layers": 1}
    assert found.resolve(given) == {"pooling": "token", **given}


def test_put_after_leave_makes_the_field_known(found):
    found.put(f"{KNOWN} vit_tiny", num_heads=3)
    assert found.get("num_heads") == 3 and "num_heads" not in found.unknown
    assert found.values["num_heads"].origin == "known for vit_tiny"
    found.leave("it differs", "num_heads")
    assert found.get("num_heads", 7) == 7 and found.unknown["num_heads"] == "it differs"
    found.forget("num_heads")
    assert "num_heads" not in found.unknown


def test_attempt_keeps_the_error_as_the_reason(found):
    found.attempt(STATED, "class_names", lambda: ("a", "b"))
    found.attempt(STATED, "image_size", lambda: int("big"))
    assert found.get("class_names") == ("a", "b") and "invalid literal" in found.unknown["image_size"]


def test_differences_leave_out_uncertain_and_unknown_fields(found):
    fields = {"num_layers": 3, "pooling": "gap", "activation": "gelu"}
    assert list(found.differences(fields, (*fields, "padding"))) == [("num_layers", 2, 3)]
