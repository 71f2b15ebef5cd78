def text_table(columns, rows, decimals=4, missing=""):
    """Formats rows as an aligned text table; `missing` stands for None."""
    cells = [[str(name) for name in columns], *([_cell(value, decimals, missing) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [any(isinstance(row[i], str) for row in rows) for i in range(len(widths))]
    lines = []
    for row in cells:
        columns = zip(row, widths, left, strict=True)
        lines.append("  ".join(c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in columns).rstrip())
    return "\n".join(lines)


def _cell(value, decimals, missing):
    if value is None:
        return missing
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{decimals}f}" if isinstance(value, float) else str(value)
