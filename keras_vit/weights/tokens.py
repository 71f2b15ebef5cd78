"""Finds a model's weights by path, and the positions of the tokens before its patches."""

# Weights of the tokens before the patches that may have position embeddings, in the order of these tokens.
PREFIX_TOKENS = ("class_token/tokens", "distillation_token/tokens")
REGISTERS = ("registers/tokens",)


def weights_by_path(model):
    """Returns {path: variable}, such as {"block_00/attention/qkv/kernel": ...}, without the model's scope."""
    return {
        f"{layer.name}/{variable.path.rpartition(f'{layer.name}/')[2]}": variable
        for layer in model.layers
        for variable in layer.weights
    }


def rows_of_tokens(rows, counts, kept):
    """Yields (token weight, its rows of a position table) for tokens that have no row in a table of `kept` rows.

    `rows`, (1, positions, hidden_dim), are the table's rows for prefix tokens. `counts` maps token weights to counts.
    """
    start = 0
    for weight, count in counts.items():
        own = rows[:, start : start + count]
        if start >= kept and own.size:
            yield weight, own
        start += count
