"""Finds the private attributes of Keras and the backends that keras_vit uses."""

import ast
from pathlib import Path

import keras_vit

# Each with the reason why there is no public way.
KNOWN = {
    "_keras_history": "Keras has no public link from a symbolic tensor to the layer call that made it.",
    "_inbound_nodes": "Keras has no public list of the calls of a layer.",
    "_get_seed_generator": "Keras' random layers take their seed in tf.data from this method, which Keras documents.",
    "_trainable_variables": "An optimizer has no public list of the variables that it was built for.",
}
# Methods of named tuples, whose names are public.
TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def test_private_attributes_of_frameworks_are_the_known_ones():
    trees = {path: ast.parse(path.read_text()) for path in Path(keras_vit.__file__).parent.rglob("*.py")}
    own, used = set(TUPLES), {}
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        is_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_self and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            if private and node.attr not in own:
                used.setdefault(node.attr, []).append(f"{path.name}:{node.lineno}")
    print(used)
    assert set(used) <= set(KNOWN), used
    assert sum(map(len, used.values())) <= 4
