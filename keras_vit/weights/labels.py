"""Reads the class names and the task from the config.json of a folder."""

from keras_vit.weights.found import DEFAULT, STATED

# {value of `problem_type` in transformers' config.json: task}. The config.json of timm folders may contain it too.
TASKS = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def read_labels(found, config, labels, *, of_timm=False, usual="single_label"):
    """Reads the task and the class names of a config.json into `found`. Does nothing for models without a classifier.

    `labels` are the class names of the config: a dict from class number to name, or None. If `of_timm` is True, a list
    is accepted too, and a dict that lacks a class number is ignored. `usual` is the task if `problem_type` is missing.
    """
    if not found.get("num_classes"):
        return
    default, problem_type = f"{DEFAULT} {'timm' if of_timm else 'transformers'}", config.get("problem_type")
    origin = default if problem_type is None else STATED
    if problem_type is None or problem_type in tuple(TASKS):
        found.put(origin, task=TASKS.get(problem_type, usual))
    else:
        found.leave(str(_invalid(found.path, f"problem_type as one of {', '.join(TASKS)}", problem_type)), "task")
    if of_timm and isinstance(labels, dict) and not _is_numbered(labels):
        labels = None
    found.attempt(default if labels is None else STATED, "class_names", lambda: _names(found, labels, of_timm))


def _names(found, labels, of_timm):
    is_dict = isinstance(labels, dict)
    if is_dict or (labels is not None and not of_timm):
        if not (is_dict and _is_numbered(labels)):
            raise _invalid(found.path, "id2label with a name for each number from 0", labels)
        labels = [name for _, name in sorted(labels.items(), key=lambda item: int(item[0]))]
    if labels is None or labels == [f"LABEL_{i}" for i in range(len(labels))]:
        # If a model has no class names, transformers writes the placeholders "LABEL_0", "LABEL_1", ...
        return None
    if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
        raise _invalid(found.path, "class names that are texts", labels)
    if len(labels) != found.get("num_classes"):
        expected = f"{found.get('num_classes')} class names, one for each output"
        raise _invalid(found.path, expected, f"{len(labels)} names")
    return tuple(labels)


def _is_numbered(names):
    return {str(key) for key in names} == {str(i) for i in range(len(names))}


def _invalid(path, expected, received):
    text = repr(received)
    shown = text if len(text) < 200 else f"{text[:200]}..."
    return ValueError(f"Cannot load {path!r}: its config.json is invalid. Expected {expected}. Received: {shown}")
