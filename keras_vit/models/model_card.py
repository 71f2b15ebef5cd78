"""Writes the README.md of a model on the Hugging Face hub."""

from keras_vit.config import config_of, find_normalization
from keras_vit.models.loading import current_fields

_MOST_CLASS_NAMES = 50
# {format: (library that loads a folder of this format, code that loads it)}.
_LOADING = {
    "huggingface": ("transformers", 'transformers.{auto}.from_pretrained("{repo}")'),
    "timm": ("timm", 'timm.create_model("hf-hub:{repo}", pretrained=True)'),
}


def model_card(model, name, repo, folder, format):
    """Returns the README.md of a model that is uploaded from `folder` to the hub repository `repo`.

    The README.md contains the code `from_pretrained(name)`, which loads the model.
    """
    fields, config, preprocessing = current_fields(model), config_of(model), find_normalization(model).preprocessing
    size, class_names = model.input_shape[1:3], config.class_names or ()
    class_names = class_names if len(class_names) == fields["num_classes"] else ()
    scale, mean, std = (
        ", ".join(f"{number:g}" for number in getattr(preprocessing, field)) for field in ("value_range", "mean", "std")
    )
    resize = f"{preprocessing.interpolation}, {preprocessing.resize_mode}, crop {preprocessing.crop_fraction:g}"
    facts = {
        "Architecture": config.describe(fields),
        "Parameters": f"{model.count_params():,}",
        "Image size": "any" if None in size else f"{size[0]} x {size[1]}",
        "Preprocessing": f"resize {resize}; scale to {scale}; mean {mean}; std {std}",
    }
    if 0 < len(class_names) <= _MOST_CLASS_NAMES:
        facts["Classes"] = ", ".join(class_names)
    auto, task = "AutoModel", "image-feature-extraction"
    if fields["num_classes"]:
        auto, task = "AutoModelForImageClassification", "image-classification"
    library, loading = "keras-vit", [("keras_vit", f'keras_vit.from_pretrained("{name}")')]
    if format in _LOADING and (folder / "config.json").is_file():
        library, code = _LOADING[format]
        loading.append((library, code.format(auto=auto, repo=repo)))
    header = ("---", f"library_name: {library}", f"pipeline_tag: {task}", "tags:", "- keras-vit", "- vision", "---")
    listed = (f"- {title}: {fact}" for title, fact in facts.items())
    codes = (f"```python\nimport {package}\n\nmodel = {call}\n```\n" for package, call in loading)
    last = ("## Training, results and license", "", "Not stated yet.", "")
    return "\n".join((*header, "", f"# {repo.partition('/')[2]}", "", *listed, "", *codes, *last))
