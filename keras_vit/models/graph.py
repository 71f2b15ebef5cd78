"""Walks through the graph of a functional model, nested models included."""

import keras


def call_of(tensor):
    """The call that a symbolic tensor comes from: operation, index of the call, input tensors, index of this output."""
    # Keras has no public way from a tensor to its call: `layer.input` is of the layer's first call alone.
    operation, node_index, tensor_index = tensor._keras_history
    return operation, node_index, list(operation._inbound_nodes[node_index].input_tensors), tensor_index


def nodes_before(tensors):
    """Yields the calls that symbolic tensors come from, the nearest first: (operation, its input tensors)."""
    pending, seen = list(tensors), set()
    while pending:
        operation, node_index, inputs, _ = call_of(pending.pop(0))
        if (id(operation), node_index) not in seen:
            seen.add((id(operation), node_index))
            yield operation, inputs
            pending += inputs


def operations_before(model, layer):
    """The operations between a model's inputs and a layer in it, at any depth; None if no graph leads to the layer.

    A nested model that is a graph stands for its layers.
    """
    for operation, inputs in nodes_before(model.outputs):
        within = [] if operation is layer else None
        if is_graph(operation):
            within = operations_before(operation, layer)
        if within is not None:
            return _flat(operation for operation, _ in nodes_before(inputs)) + within
    return None


def replay(model, inputs, call):
    """Passes symbolic tensors through the graph of a model, with `call(operation, *args, **kwargs)` for each call.

    Returns a list of the outputs, in the order of `model.outputs`. No layer of the model is called.
    """
    end, outputs = keras.layers.Identity(name="end_of_replay"), []
    # Keras builds another graph, from these to these, whatever `call` returns.
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
    """Whether an operation is a functional or sequential model, and not one with its own `call`."""
    return isinstance(operation, keras.Model) and bool(getattr(operation, "outputs", None))


def _flat(operations):
    found = []
    for operation in operations:
        found += _flat(o for o, _ in nodes_before(operation.outputs)) if is_graph(operation) else [operation]
    return found
