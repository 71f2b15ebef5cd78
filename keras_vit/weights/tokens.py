"""Finds a model's weights by path, and the position embeddings of the tokens before its patches."""

# Paths of tokens before the patches that may have position embeddings, in the order of the model's tokens.
PREFIX_TOKENS = ("class_token/tokens", "distillation_token/tokens")
REGISTERS = ("registers/tokens",)


def weights_by_path(model):
    """Returns {path: variable}, such as {"block_00/attention/qkv/kernel": ...}. Paths begin with the layer's name."""
    return {
        f"{layer.name}/{variable.path.rpartition(f'{layer.name}/')[2]}": variable
        for layer in model.layers
        for variable in layer.weights
    }


def rows_of_tokens(rows, counts, kept):
    """Yields (token weight, its rows of a position table) for tokens that have no rows in a second, shorter table.

    `rows`, (1, positions, hidden_dim), are the rows of the first table for the tokens before the patches. `counts`
    maps the path of a token weight to its number of tokens. `kept` is the number of rows for tokens before the
    patches in the second table.
    """
    start = 0
    for weight, count in counts.items():
        own = rows[:, start : start + count]
        if start >= kept and own.size:
            yield weight, own
        start += count
