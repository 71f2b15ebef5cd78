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
    """Yields (path of a token weight, its rows) for the tokens whose rows the second of two position tables lacks.

    Both tables begin with rows for the tokens before the patches. `rows`, (1, positions, hidden_dim), are these rows of
    the first table. The second table has `kept` such rows. `counts` maps the path of each token weight to its number of
    tokens.
    """
    start = 0
    for weight, count in counts.items():
        own = rows[:, start : start + count]
        if start >= kept and own.size:
            yield weight, own
        start += count
