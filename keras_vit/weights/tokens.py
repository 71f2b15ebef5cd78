"""The paths of a model's weights, and the tokens before its patches."""

# Tokens before the patches that may have a position embedding, in their order.
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
    """Yields (weight, its rows) for prefix tokens without a row in a table with `kept` rows for prefix tokens.

    `rows` is (1, positions, hidden_dim); `counts` maps token weights to their number of tokens.
    """
    start = 0
    for weight, count in counts.items():
        own = rows[:, start : start + count]
        if start >= kept and own.size:
            yield weight, own
        start += count
