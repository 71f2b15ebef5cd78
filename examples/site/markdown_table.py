"""A Markdown table from rows."""


def markdown_table(columns, rows):
    """Returns a Markdown table; None is an empty cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |" for line in lines)
