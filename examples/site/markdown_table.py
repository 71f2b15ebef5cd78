"""Formats rows as a Markdown table."""


def markdown_table(columns, rows):
    """Returns a Markdown table. Cells that are None are empty."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |" for line in lines)
