from keras_vit.text_table import text_table


def test_table_aligns_columns_and_rounds_numbers():
    text = text_table(["name", "x", "ok"], [["a", 1234567, True], ["bb", 0.123456, False], ["c", None, None]], 2, "-")
    assert text.splitlines() == [
        "name          x     ok",
        "a     1,234,567   True",
        "bb         0.12  False",
        "c             -      -",
    ]
    assert text_table(["a", "b"], []) == "a  b"
    assert text_table([], []) == ""
