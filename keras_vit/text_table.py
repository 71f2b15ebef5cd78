def text_table(columns, rows, decimals=4, missing=""):
    """Formats rows as an aligned text table; `missing` stands for None."""

    def text(value):
        if isinstance(value, float):
            return f"{value:,.{decimals}f}"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return missing if value is None else str(value)

    cells = [list(columns), *([text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if any(isinstance(row[i], str) for row in rows) else ">" for i in range(len(widths))]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(form.format(*row).rstrip() for row in cells)
