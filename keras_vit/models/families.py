"""The families beside ViT and BiT: how their checkpoints state a config, and what timm calls their models."""

from keras_vit.models.coatnet import checkpoint as timm_coatnet
from keras_vit.models.efficientnet import checkpoint as efficientnet

# Each module tells, of a checkpoint: `settings_of`, {name: value} of its `SETTINGS`, the fields that decide the outputs
# and that no array shows, None if unknown; `model_name`, of its sizes, or None; `add_fields`, which adds to a `Stated`
# the fields that the file tells, and the unknown ones with the reason; `preprocessing`, (constants, whether it
# determines them), which is None where those of its source are meant. Of a config: `timm_name`, of timm's architecture,
# or None; `timm_arguments`, in JSON's types, those that the name does not set. `TIMM_ENDS` are the keys of timm's first
# convolution and of its head, without ".weight".
FAMILIES = {"coatnet": timm_coatnet, "efficientnet": efficientnet}
