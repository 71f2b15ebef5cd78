"""The class names and the task that the folders of transformers and timm state."""

import re

# The config fields of each `problem_type` of transformers.
TASKS = {
    "single_label_classification": {},
    "multi_label_classification": {"multi_label": True},
    "regression": {"regression": True},
}


def labels_of(checkpoint):
    """Returns the config fields `class_names`, `multi_label` and `regression` that a folder states."""
    num_classes, container = checkpoint.sizes["num_classes"], checkpoint.file.container
    if not num_classes or container not in ("huggingface", "timm"):
        return {}
    if container == "huggingface":
        names = _names_by_number(checkpoint.path, checkpoint.config.get("id2label"))
        found = _task(checkpoint.path, checkpoint.config.get("problem_type"))
    else:
        config = checkpoint.facts["config"]
        names, found = config.get("label_names") or (checkpoint.facts["timm"] or {}).get("label_names"), {}
    if names is None:
        return found
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise _invalid(checkpoint.path, "class names that are texts", names)
    if len(names) != num_classes:
        raise _invalid(checkpoint.path, f"{num_classes} class names, one for each output", f"{len(names)} names")
    return {**found, "class_names": tuple(names)}


def id2label(config):
    """Returns the entries of transformers' config.json for the class names and the task of a config."""
    labels = config.class_names or [f"LABEL_{i}" for i in range(config.num_classes)]
    if not labels:
        return {}
    found = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    for task, fields in TASKS.items():
        if fields and all(getattr(config, field) for field in fields):
            found["problem_type"] = task
    return found


def _names_by_number(path, labels):
    """Returns the names of an `id2label` in order; None if they are the placeholders of transformers."""
    if labels is None:
        return None
    if not isinstance(labels, dict) or {str(key) for key in labels} != {str(i) for i in range(len(labels))}:
        raise _invalid(path, "id2label with a name for each number from 0", labels)
    names = [name for _, name in sorted(labels.items(), key=lambda item: int(item[0]))]
    placeholders = all(isinstance(name, str) and re.fullmatch(rf"LABEL_{i}", name) for i, name in enumerate(names))
    return None if placeholders else names


def _task(path, problem_type):
    if problem_type is not None and problem_type not in TASKS:
        raise _invalid(path, f"problem_type as one of {', '.join(TASKS)}", problem_type)
    return TASKS.get(problem_type, {})


def _invalid(path, expected, received):
    text = repr(received)
    shown = text if len(text) < 200 else f"{text[:200]}..."
    return ValueError(f"Cannot load {path!r}: its config.json. Expected {expected}. Received: {shown}")
