"""Tables as aligned text, for results and profiles alike."""


def text_table(columns, rows, decimals=4, missing=""):
    """Writes rows under their column names, texts to the left and numbers to the right.

    Args:
        columns: The names of the columns.
        rows: Sequences of one value a column.
        decimals: Int, of floats.
        missing: String, what stands for None.

    Returns:
        String, lines without trailing blanks or a last line break.

    Example:

    >>> print(text_table(["task", "accuracy"], [["dtd", 0.75], ["svhn", None]]))
    task  accuracy
    dtd     0.7500
    svhn
    """
    cells = [[str(name) for name in columns], *([_cell(value, decimals, missing) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [any(isinstance(row[i], str) for row in rows) for i in range(len(widths))]
    lines = (
        "  ".join(c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in zip(row, widths, left, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cell(value, decimals, missing):
    if value is None:
        return missing
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{decimals}f}" if isinstance(value, float) else str(value)
