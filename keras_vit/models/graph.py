"""Walks the graphs of functional models, nested models included."""

import collections
import functools
from typing import NamedTuple

import keras

from keras_vit.layers import TokenPooling, TransformerBlock, direct


def call_of(tensor):
    """The call that made a symbolic tensor: (operation, index of the call, input tensors, index of this output)."""
    # Keras has no public way from a tensor to its call: `layer.input` only knows the layer's first call.
    operation, node_index, tensor_index = tensor._keras_history
    return operation, node_index, list(operation._inbound_nodes[node_index].input_tensors), tensor_index


def nodes_before(tensors):
    """Yields (operation, input tensors) of each call that symbolic tensors depend on, nearest first."""
    pending, seen = list(tensors), set()
    while pending:
        operation, node_index, inputs, _ = call_of(pending.pop(0))
        if (id(operation), node_index) not in seen:
            seen.add((id(operation), node_index))
            yield operation, inputs
            pending += inputs


def operations_before(model, layer):
    """The operations between a model's inputs and a layer, also in nested graphs; None if no graph leads to it."""
    for operation, inputs in nodes_before(model.outputs):
        within = [] if operation is layer else None
        if is_graph(operation):
            within = operations_before(operation, layer)
        if within is not None:
            return _flat(operation for operation, _ in nodes_before(inputs)) + within
    return None


class Reading(NamedTuple):
    """A transformer block, the number of its leading tokens that a model's outputs read, and the layers concerned."""

    block: TransformerBlock
    num_tokens: int
    layers: tuple


def last_reading(model):
    """The `Reading` of a functional model's last transformer block; None if it reads all of the block's tokens."""
    nodes = [node for depth in sorted(model._nodes_by_depth) for node in model._nodes_by_depth[depth]]
    last = next((node for node in nodes if type(node.operation) is TransformerBlock), None)
    if last is None or sum(n.operation is last.operation for n in nodes) > 1:
        return None
    num_tokens, layers, pending = 0, list(last.operation._flatten_layers()), list(last.outputs)
    while pending:
        tokens = pending.pop()
        if any(tokens is output for output in model.outputs):
            return None
        for node in nodes:
            if not any(tokens is x for x in node.input_tensors):
                continue
            if type(node.operation) is TokenPooling and node.operation.method == "token":
                num_tokens = max(num_tokens, node.operation.index + 1)
            elif type(node.operation) is keras.layers.LayerNormalization and node.operation.axis == [-1]:
                pending += node.outputs
            else:
                return None
            layers.append(node.operation)
    return Reading(last.operation, num_tokens, tuple(layers)) if num_tokens else None


def reads_leading_tokens(reading, operation_fn):
    """Changes an `operation_fn` of Keras' graphs to compute only the tokens that are read, if no layer is changed."""
    if not all(map(direct.computes_as_written, reading.layers)):
        return operation_fn

    def changed(operation):
        call = operation_fn(operation)
        # By name, since the operation may be wrapped.
        is_read = operation.name == reading.block.name
        return functools.partial(call, num_outputs=reading.num_tokens) if is_read else call

    return changed


def run_and_free(model, inputs, operation_fn):
    """Runs a functional model on PyTorch, and frees each output after its last use; Keras keeps all until the end."""
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth] if not node.is_input]
    uses = collections.Counter(id(x) for node in nodes for x in node.input_tensors)
    uses.update(map(id, model.outputs))
    found = {id(x): value for x, value in zip(model.inputs, keras.tree.flatten(inputs), strict=True)}
    for node in nodes:
        args, kwargs = node.arguments.fill_in(found)
        for x in node.input_tensors:
            uses[id(x)] -= 1
            if not uses[id(x)]:
                del found[id(x)]
        operation = node.operation
        if isinstance(operation, keras.layers.Layer):
            operation = direct.InModel(operation, model.dtype_policy)
        values = operation_fn(operation)(*args, **kwargs)
        pairs = zip(node.outputs, keras.tree.flatten(values), strict=False)
        found.update({id(x): value for x, value in pairs if uses[id(x)]})
        del args, kwargs, values, pairs
    return keras.tree.pack_sequence_as(model._outputs_struct, [found[id(x)] for x in model.outputs])


def replay(model, inputs, call):
    """Passes `inputs` through a model's graph by `call(operation, *args, **kwargs)`; returns a list of outputs."""
    end, outputs = keras.layers.Identity(name="end_of_replay"), []
    # clone_model needs symbolic outputs, whatever `call` returns: here an identity of `sources`.
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
    """Whether an operation is a functional or sequential model, not one with its own `call`."""
    return isinstance(operation, keras.Model) and bool(getattr(operation, "outputs", None))


def _flat(operations):
    found = []
    for operation in operations:
        found += _flat(o for o, _ in nodes_before(operation.outputs)) if is_graph(operation) else [operation]
    return found
