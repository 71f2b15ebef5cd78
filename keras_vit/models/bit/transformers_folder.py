"""Writes folders of BiTs that transformers loads."""

from keras_vit.models.bit.config import ROOT_WIDTH
from keras_vit.models.bit.names import HUGGINGFACE_BIT
from keras_vit.weights import transformers_config
from keras_vit.weights.transformers_config import id2label, with_prefix


def write_folder(path, arrays, record, facts):
    """Writes the files of a folder, each completely or not at all; `arrays` has the keys of `HUGGINGFACE_BIT`."""
    preprocessor = transformers_config.preprocessor_config(facts, record.in_channels)
    arrays, width = with_prefix(arrays, "bit." if record.num_classes else ""), int(ROOT_WIDTH * record.width_factor)
    config = {
        "architectures": ["BitForImageClassification" if record.num_classes else "BitModel"],
        "model_type": "bit",
        "num_channels": record.in_channels,
        # transformers does not apply `width_factor` to the first convolution.
        "embedding_size": width,
        "hidden_sizes": [4 * width * 2**i for i in range(len(record.stages))],
        "depths": record.stages,
        **HUGGINGFACE_BIT.config,
        **id2label(record),
    }
    transformers_config.write_folder(path, arrays, config, facts, preprocessor)
