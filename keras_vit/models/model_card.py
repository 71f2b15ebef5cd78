"""Writes the README.md of a model on the Hugging Face hub."""

from keras_vit.config import config_of
from keras_vit.models.loading import current_fields


def model_card(model, name, repo, folder, format):
    """Returns the README.md of a model that is uploaded from `folder` to the hub repository `repo`.

    The README.md contains the code `from_pretrained(name)`, which loads the model.
    """
    fields, size = current_fields(model), model.input_shape[1:3]
    # A folder with config.json can also be loaded by the library of the format.
    library = {"huggingface": "transformers", "timm": "timm"}.get(format, "keras-vit")
    library = library if (folder / "config.json").is_file() else "keras-vit"
    return f"""---
library_name: {library}
pipeline_tag: {"image-classification" if fields["num_classes"] else "image-feature-extraction"}
tags:
- keras-vit
- vision
---

# {repo.partition("/")[2]}

- Architecture: {config_of(model).describe(fields)}
- Parameters: {model.count_params():,}
- Image size: {"any" if None in size else f"{size[0]} x {size[1]}"}

```python
import keras_vit

model = keras_vit.from_pretrained("{name}")
```

## Training, results and license

Not stated yet.
"""
