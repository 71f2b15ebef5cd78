"""Checked by mypy: the named builders know their arguments."""

import keras_vit

keras_vit.ViTB16(num_classes=10, image_size=(224, 224), pooling="gap")
keras_vit.BiTR50x1(num_classes=10)
keras_vit.CoAtNet0(num_classes=10)
keras_vit.ViTB16(num_clases=10)  # type: ignore[call-arg]
