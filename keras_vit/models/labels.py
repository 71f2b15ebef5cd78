"""The class names and the task that the folders of transformers and timm state."""

# The config fields of each `problem_type` of transformers.
TASKS = {
    "single_label_classification": {},
    "multi_label_classification": {"task": "multi_label"},
    "regression": {"task": "regression"},
}


def labels_of(checkpoint):
    """Returns the config fields `class_names` and `task` that a folder states."""
    num_classes, container = checkpoint.sizes["num_classes"], checkpoint.file.container
    if not num_classes or container not in ("huggingface", "timm"):
        return {}
    config = checkpoint.facts["config"]
    found = _task(checkpoint.path, config.get("problem_type"))
    if container == "huggingface":
        names = config.get("id2label")
        if names is not None and not _is_numbered(names):
            raise _invalid(checkpoint.path, "id2label with a name for each number from 0", names)
    else:
        names = config.get("label_names") or (checkpoint.facts["timm"] or {}).get("label_names")
        if isinstance(names, dict) and not _is_numbered(names):
            # timm's numbers may have gaps, which class names cannot express.
            return found
    if isinstance(names, dict):
        names = [name for _, name in sorted(names.items(), key=lambda item: int(item[0]))]
    if names is None or names == [f"LABEL_{i}" for i in range(len(names))]:
        # Without names, transformers writes placeholders.
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
        if fields.get("task") == config.task:
            found["problem_type"] = task
    return found


def _is_numbered(names):
    return isinstance(names, dict) and {str(key) for key in names} == {str(i) for i in range(len(names))}


def _task(path, problem_type):
    if problem_type is not None and problem_type not in tuple(TASKS):
        raise _invalid(path, f"problem_type as one of {', '.join(TASKS)}", problem_type)
    return TASKS.get(problem_type, {})


def _invalid(path, expected, received):
    text = repr(received)
    shown = text if len(text) < 200 else f"{text[:200]}..."
    return ValueError(f"Cannot load {path!r}: its config.json. Expected {expected}. Received: {shown}")
