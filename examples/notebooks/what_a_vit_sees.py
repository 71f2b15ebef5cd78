# %% [markdown]
# # What a Vision Transformer sees
#
# This notebook draws what a trained ViT has learned, with the functions of `keras_vit.inspection`. The paper is "An
# Image is Worth 16x16 Words" ([arXiv 2010.11929](https://arxiv.org/abs/2010.11929)); its figures 6, 7, 11 and 14 are
# drawn here again.
#
# **Contents**: 1 Model and pictures · 2 Predictions · 3 Embedding filters · 4 Position embeddings · 5 Attention
# distance · 6 Attention maps · 7 Attention rollout · 8 Attention for one class
#
# This notebook needs `keras_vit` with the extra `inspect`, and one of TensorFlow, JAX and PyTorch; the environment
# variable `KERAS_BACKEND` chooses one. `samples.py`, which lies beside this notebook in the repository, finds the
# published ViT-B/16 (`ViT-B_16-224.npz`, trained on ImageNet) and the pictures. Without them, it trains a small ViT on
# scikit-learn's handwritten digits; the texts below are about ViT-B/16. In Kaggle and Colab, upload `samples.py` and
# copy it to the working folder first. For your own model and pictures, replace `samples.weights()` and
# `samples.photos()`; then you need `samples.py` only for the first figure.

# %%
import keras
import numpy as np
import samples

import keras_vit
from keras_vit import inspection

weights, (paths, labels) = samples.weights(), samples.photos()
samples.show(paths[:8], labels)

# %% [markdown]
# ## 1 Model and pictures
#
# `from_pretrained` builds the model that a file contains. `read_image` resizes and crops a picture as in the evaluation
# of the checkpoint, and `preprocess_input` scales it.

# %%
model = keras_vit.from_pretrained(weights)
raw = np.stack([keras_vit.read_image(path, model) for path in paths])
images = keras_vit.preprocess_input(raw, model)
config = model.config
print(f"{model.count_params():,} parameters, {config.num_layers} blocks of {config.num_heads} heads")
print(f"{len(images)} pictures of {raw.shape[1:]}, {config.grid} patches of {config.patch_size} pixels")

# %% [markdown]
# ## 2 Predictions
#
# Each title has the predicted class, its probability and the true class; a red frame marks a mistake. The paper's
# ViT-B/16 is right on 84% of ImageNet's validation pictures after pre-training on ImageNet-21k (table 5, at 384
# pixels). Probabilities near 1 are common. They do not mean that the model has recognised everything in the picture.

# %%
shown = slice(0, 5)
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(images[shown], verbose=0)))
inspection.plot_predictions(raw[shown], labels[shown], probabilities, model)

# %% [markdown]
# The five most probable classes of the first picture:

# %%
for _, name, probability in keras_vit.decode_predictions(probabilities[:1], model)[0]:
    print(f"{probability:6.1%}  {name.replace('_', ' ')}")

# %% [markdown]
# ## 3 Embedding filters (figure 7, left)
#
# Each tile is a principal component of the filters that turn a patch of pixels into a token. Grey is zero. Spots, edges
# and waves of colour are patterns that the first layer measures in a patch. Some tiles look like noise. The paper says
# that the components "resemble plausible basis functions for a low-dimensional representation of the fine structure
# within each patch".

# %%
inspection.plot_embedding_filters(inspection.embedding_filters(model))

# %% [markdown]
# ## 4 Position embeddings (figure 7, centre)
#
# There is a tile for each patch, at the place of the patch in the image. The tile compares the position embedding of
# its patch with the embeddings of all patches. Yellow means that two embeddings have the same direction, and dark means
# opposite directions. The model is not given the place of a patch. In the paper and here, the model has learned similar
# embeddings for near patches, and for patches in the same row or column.

# %%
inspection.plot_position_similarity(inspection.position_similarity(model))

# %% [markdown]
# ## 5 Attention distance (figures 7, right, and 11)
#
# Each dot is a head. The height of the dot is the distance in pixels between a patch and the patches that it reads.
# This distance is weighted by the attention, and averaged over all patches and pictures. The paper compares this
# distance with the receptive field of a convolution. Some heads of the first blocks read the whole image, and other
# heads only read near patches. In the last blocks, all heads read distant patches.

# %%
distance = inspection.attention_distance(model, images)
inspection.plot_attention_distance(distance)

# %% [markdown]
# The table summarises the same numbers. At distance 0, each patch reads only itself. In a 14 x 14 grid of patches of 16
# pixels, random pairs of patches are 116 pixels apart on average. If a head has about this distance, its patches read
# the whole image, or they all read the same few patches.

# %%
print("block  nearest head  mean  farthest head  (pixels)")
for block, heads in enumerate(distance):
    print(f"{block:5}  {heads.min():12.0f}  {heads.mean():4.0f}  {heads.max():13.0f}")

# %% [markdown]
# ## 6 Attention maps
#
# The next two figures show one block each, with a tile for each head. In each head, the class token takes its
# information from the bright patches. Figure 6 of the paper combines the attention of all blocks. The paper says that
# the model "attends to image regions that are semantically relevant for classification". The first figure shows the
# first block, whose heads attend to patches by place, brightness and texture:

# %%
first, middle, last = inspection.attention_maps(model, images[:1], blocks=[0, config.num_layers // 2, -1])
inspection.plot_attention_maps(raw[0], first[0], grid_size=config.grid)

# %% [markdown]
# In the last block, several heads mark the animals. Other heads read a few patches of the blanket. Large ViTs store
# information about the whole image in some patches of the background. [arXiv
# 2309.16588](https://arxiv.org/abs/2309.16588) calls these patches artifacts, and adds register tokens to avoid them.

# %%
inspection.plot_attention_maps(raw[0], last[0], grid_size=config.grid)

# %% [markdown]
# Patches attend to other patches too. The next figure shows the attention of one patch in a middle block, and a cross
# marks this patch. Some heads read its surroundings, and some read similar places of the whole picture.

# %%
rows, columns = model.config.grid
query = config.num_prefix_tokens + (rows // 2) * columns + columns // 4
inspection.plot_attention_maps(raw[0], middle[0], grid_size=config.grid, query=query)

# %% [markdown]
# ## 7 Attention rollout (figures 6 and 14)
#
# Rollout multiplies the attention of all blocks, including the residual paths. If a patch is bright, its content can
# reach the head. In the paper's figure 6, the object is bright and the rest is dark. This is also true for the daisies,
# but not for the picture of the cats, because rollout does not include the MLPs and does not depend on the class.

# %%
rollout = inspection.attention_rollout(model, images[:3])
inspection.plot_attention_rollout(raw[:3], rollout, titles=labels[:3])

# %% [markdown]
# ## 8 Attention for one class
#
# `gradient_rollout` weights each attention matrix by the gradient of one class ([arXiv
# 2103.15679](https://arxiv.org/abs/2103.15679), not in the ViT paper), so a bright patch supports this class. The next
# figure shows the first picture twice, once for each of its two most probable classes. Different patches support the
# two classes.

# %%
best = np.argsort(-probabilities[0])[:2]
titles = [f"for {name}" for _, name, _ in keras_vit.decode_predictions(probabilities[:1], model, top=2)[0]]
maps = inspection.gradient_rollout(model, np.repeat(images[:1], 2, axis=0), classes=best)
inspection.plot_attention_rollout(np.repeat(raw[:1], 2, axis=0), maps, titles=titles)

# %% [markdown]
# `inspection.write_report(model, paths, "report.html")` writes these figures to one page, and so does `keras-vit
# inspect ViT-B_16-224.npz cat.jpg --out report.html` on the command line. You can also pass your own model to all these
# functions, if it contains a ViT.
