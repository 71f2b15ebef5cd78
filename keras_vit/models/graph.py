"""Walks the graphs of functional models, nested models included."""

import keras

from keras_vit.layers import MLP, TokenPooling, TransformerBlock
from keras_vit.layers.layer_norm import LayerNorm


def producing_call(tensor):
    """Returns the call that made a symbolic tensor: (operation, index of the call, input tensors, output index)."""
    # Use private attributes, because the public `layer.input` is the input of only the layer's first call.
    operation, node_index, tensor_index = tensor._keras_history
    return operation, node_index, list(operation._inbound_nodes[node_index].input_tensors), tensor_index


def nodes_before(tensors):
    """Yields (operation, input tensors) of each call that symbolic tensors depend on, nearest first."""
    pending, seen = list(tensors), set()
    while pending:
        operation, node_index, inputs, _ = producing_call(pending.pop(0))
        if (id(operation), node_index) not in seen:
            seen.add((id(operation), node_index))
            yield operation, inputs
            pending += inputs


def operations_before(model, layer):
    """Returns the operations before a layer in a model and its nested models.

    Returns None if neither the model nor a nested model contains the layer.
    """
    for operation, inputs in nodes_before(model.outputs):
        within = [] if operation is layer else None
        if is_graph(operation):
            within = operations_before(operation, layer)
        if within is not None:
            return _flat(operation for operation, _ in nodes_before(inputs)) + within
    return None


def reading_leading_tokens(model):
    """Returns a model with the same layers, in which the last transformer block computes fewer tokens.

    The block computes only the first tokens, up to the last one that later layers read. Returns None if later layers
    read all tokens, or if the block has an activity regularizer or an MLP of another class than `MLP`.
    """
    # Use a plain `keras.Model`. `clone_model` keeps the class of a model, and a `FamilyModel` would call this function
    # again.
    model = keras.Model(model.input, model.output)
    blocks = [layer for layer in model.layers if type(layer) is TransformerBlock]
    poolings = [layer for layer in model.layers if type(layer) is TokenPooling and layer.method == "token"]
    # An activity regularizer, or an MLP that mixes tokens, needs all tokens.
    if not blocks or not poolings or type(blocks[-1].mlp) is not MLP or blocks[-1].activity_regularizer is not None:
        return None
    last, num_tokens, leading, others = blocks[-1], 1 + max(layer.index for layer in poolings), [], []

    def call(layer, *args, **kwargs):
        if layer is last and not leading:
            leading.append(layer(*args, num_outputs=num_tokens, **kwargs))
            return leading[-1]
        outputs = layer(*args, **kwargs)
        if any(x is y for x in keras.tree.flatten((args, kwargs)) for y in leading):
            if type(layer) in (keras.layers.LayerNormalization, LayerNorm) and layer.axis == [-1]:
                leading.append(outputs)
            elif layer not in poolings:
                others.append(layer)
        return outputs

    clone = keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=call)
    is_read = bool(others) or any(x is y for x in clone.outputs for y in leading)
    return None if is_read or not leading else clone


def replay(model, inputs, call):
    """Runs a model's graph on `inputs` and returns the outputs. Each step is `call(operation, *args, **kwargs)`."""
    end, outputs = keras.layers.Identity(name="end_of_replay"), []
    # `clone_model` needs symbolic outputs, but `call` may return other values. So the last step, `end`, stores these
    # values in `outputs` and returns a symbolic tensor for each.
    sources = [keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in inputs]
    given = {id(source): x for source, x in zip(sources, inputs, strict=True)}

    def step(operation, *args, **kwargs):
        args, kwargs = keras.tree.map_structure(lambda x: given.get(id(x), x), (args, kwargs))
        if operation is not end:
            return call(operation, *args, **kwargs)
        outputs.extend(args[0])
        return end(sources)[:1] * len(outputs)

    graph = keras.Model(model.inputs, end(model.outputs))
    keras.models.clone_model(graph, sources, clone_function=lambda operation: operation, call_function=step)
    return outputs


def is_graph(operation):
    """Returns True if an operation is a functional or sequential model, which has a graph."""
    return isinstance(operation, keras.Model) and bool(getattr(operation, "outputs", None))


def _flat(operations):
    found = []
    for operation in operations:
        found += _flat(o for o, _ in nodes_before(operation.outputs)) if is_graph(operation) else [operation]
    return found


def activation_behind(tensor, known=("softmax", "sigmoid")):
    """Returns the name of the activation that computes a tensor; None if the name is not in `known`.

    Averages and identities between the activation and the tensor are skipped. If `known` contains "linear", this is the
    name for a dense layer without activation.
    """
    operation, _, inputs, tensor_index = producing_call(tensor)
    while isinstance(operation, keras.Model):
        if is_graph(operation):
            return activation_behind(operation.outputs[tensor_index], known)
        if not operation.layers:
            return None
        # A subclassed model has no graph. Assume that it calls its last layer last.
        operation, inputs, tensor_index = operation.layers[-1], [], 0
    # The operation classes of keras.ops are private, so compare their names.
    kind, activation = type(operation).__name__, getattr(operation, "activation", None)
    linear = isinstance(operation, keras.layers.Activation) and activation is keras.activations.linear
    if linear or kind == "Cast" or isinstance(operation, (keras.layers.Average, keras.layers.Identity)):
        found = {activation_behind(x, known) for x in inputs}
        return found.pop() if len(found) == 1 else None
    for name in known:
        fits = activation is getattr(keras.activations, name)
        if kind == name.capitalize() or (fits and (name != "linear" or isinstance(operation, keras.layers.Dense))):
            return name
    return None
