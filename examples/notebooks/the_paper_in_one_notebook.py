# %% [markdown]
# # The paper in one notebook
#
# "An Image is Worth 16x16 Words" ([arXiv 2010.11929](https://arxiv.org/abs/2010.11929)) describes the Vision
# Transformer in four equations. This notebook shows each equation in three forms: as in the paper, computed in NumPy,
# and as the layer of `keras_vit` that computes it. At the end, a model of these layers learns from CIFAR-10, and NumPy
# computes the same scores as the model, without Keras.
#
# **Contents**: 1 Pictures · 2 Patches · 3 Equation 1: the sequence · 4 Attention by hand · 5 Equation 2: attention in a
# block · 6 Equation 3: the MLP · 7 Equation 4: the output · 8 The tiny model and its 8,459,762 parameters ·
# 9 Training · 10 The whole model in NumPy
#
# This notebook needs `keras_vit` with the extra `inspect`, and one of TensorFlow, JAX and PyTorch; the environment
# variable `KERAS_BACKEND` chooses one.
#
# ## 1 Pictures
#
# CIFAR-10 has 60,000 photos of 32 x 32 pixels in 10 classes. `samples.py`, which lies beside this notebook in the
# repository, reads the photos from `cifar10.npz`. Without this file, scikit-learn's handwritten digits take their
# place; the texts below are about CIFAR-10. In Kaggle and Colab, upload `samples.py` and copy it to the working folder
# first.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import samples

import keras_vit
from keras_vit import inspection

data, names = samples.cifar10()
train_images, train_labels = data["train_images"][:6000], data["train_labels"][:6000]
test_images, test_labels = data["test_images"][:2000], data["test_labels"][:2000]
print(f"{len(train_images):,} pictures to train on, {len(test_images):,} to test on, {train_images.shape[1:]} each")
samples.show(train_images[:16], [names[label] for label in train_labels[:16]])

# %% [markdown]
# ## 2 Patches
#
# Section 3.1: an image $x \in \mathbb{R}^{H \times W \times C}$ becomes a sequence of $N = HW/P^2$ flattened patches
# $x_p \in \mathbb{R}^{N \times (P^2 C)}$. With $P = 4$, a picture of 32 x 32 pixels becomes 64 patches of 48 numbers.
# The transformer reads the patches like the words of a text. The layer `Patches` cuts the picture; in NumPy, this is a
# reshape and a transpose.

# %%
P = 4
picture = keras_vit.preprocess_input(train_images[:1])  # 0..255 becomes -1..1
patches = keras.ops.convert_to_numpy(keras_vit.layers.Patches(P)(picture))

H, W, C = picture.shape[1:]
by_hand = picture.reshape(H // P, P, W // P, P, C).transpose(0, 2, 1, 3, 4).reshape(-1, P * P * C)
print("image", picture.shape[1:], "-> patches", patches.shape[1:])
print("the layer and NumPy agree:", np.array_equal(patches[0], by_hand))

# %%
figure = plt.figure(figsize=(8, 4.8), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(4, 1))
left, right = top.subfigures(1, 2)
axes = left.subplots()
axes.imshow(train_images[0])
axes.set_axis_off()
axes.set_title("the image")
tiles = (by_hand.reshape(-1, P, P, C) + 1) / 2
for axes, tile in zip(right.subplots(H // P, W // P).ravel(), tiles, strict=True):
    axes.imshow(tile, vmin=0, vmax=1)
    axes.set_axis_off()
right.suptitle("its 64 patches")
bottom.suptitle("the sequence that the transformer reads (patches 25 to 40)", fontsize=10)
for i, axes in enumerate(bottom.subplots(1, 16)):
    axes.imshow(tiles[24 + i], vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_title(str(25 + i), fontsize=8)

# %% [markdown]
# ## 3 Equation 1: the sequence
#
# $$z_0 = [x_\mathrm{class};\ x_p^1 E;\ x_p^2 E;\ \dots;\ x_p^N E] + E_\mathrm{pos}, \qquad
# E \in \mathbb{R}^{(P^2 C) \times D},\ E_\mathrm{pos} \in \mathbb{R}^{(N+1) \times D} \tag{1}$$
#
# - `PatchEmbedding`: a matrix $E$ turns each patch into a token of $D$ numbers. The layer's kernel has the shape of a
#   convolution kernel, (P, P, C, D). Reshaped to two dimensions, the kernel is $E$.
# - `ClassToken`: a learned vector, the class token, is put before the patches. It starts at zero. The head will compute
#   the answer from the output of this token.
# - `PositionEmbedding`: a learned vector is added at each of the $N + 1$ places. Without these vectors, the model could
#   not tell where a patch was.

# %%
D = 512
keras.utils.set_random_seed(0)
embedding = keras_vit.layers.PatchEmbedding(D, patch_size=P)
class_token = keras_vit.layers.ClassToken()
positions = keras_vit.layers.PositionEmbedding((H // P, W // P), num_prefix_tokens=1)

tokens = embedding(picture)
with_class = class_token(tokens)
z0 = positions(with_class)
for name, value in (("x_p E", tokens), ("[x_class; x_p E]", with_class), ("z_0", z0)):
    print(f"{name:17} {tuple(value.shape)}")


# %%
def array(x):
    """Returns a weight or an output as a NumPy array."""
    return keras.ops.convert_to_numpy(x)


E = array(embedding.kernel).reshape(P * P * C, D)
x_class, E_pos = array(class_token.tokens)[0], array(positions.embeddings)[0]
by_hand = np.concatenate([x_class, patches[0] @ E + array(embedding.bias)]) + E_pos
print("E", E.shape, " x_class", x_class.shape, " E_pos", E_pos.shape)
print(f"largest difference of NumPy from the layers: {np.abs(by_hand - array(z0)[0]).max():.1e}")

# %% [markdown]
# ## 4 Attention by hand
#
# Appendix A of the paper defines attention. Each token $z$ has a query $q$, a key $k$ and a value $v$:
#
# $$[q, k, v] = z U_{qkv} \tag{5}$$
# $$A = \mathrm{softmax}(q k^\top / \sqrt{D_h}) \tag{6}$$
# $$\mathrm{SA}(z) = A v \tag{7}$$
#
# In this example, there are three tokens of two numbers, and one head with $D_h = 2$. The queries are the tokens, the
# keys are the tokens doubled, and the values swap the two numbers.

# %%
z = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
U_q = np.array([[1.0, 0.0], [0.0, 1.0]])
U_k = np.array([[2.0, 0.0], [0.0, 2.0]])
U_v = np.array([[0.0, 1.0], [1.0, 0.0]])

q, k, v = z @ U_q, z @ U_k, z @ U_v
scores = q @ k.T / np.sqrt(2)
print("q k^T =", (q @ k.T).tolist())
print("q k^T / sqrt(2) =")
print(scores.round(4))

# %% [markdown]
# The softmax makes each row positive with sum 1. For the first token, the scores are 1.4142, 0 and 1.4142, with
# $e^{1.4142} = 4.1133$ and $e^0 = 1$:
#
# $$A_1 = \frac{(4.1133,\ 1,\ 4.1133)}{4.1133 + 1 + 4.1133} = (0.4458,\ 0.1084,\ 0.4458)$$
#
# The first token reads itself and the third token, whose scores are high, and little of the second token. The output of
# the first token is the mean of the values with these weights:
# $0.4458 \cdot (0, 1) + 0.1084 \cdot (1, 0) + 0.4458 \cdot (1, 1) = (0.5542,\ 0.8916)$.

# %%
A = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
print("A =")
print(A.round(4))
print("A v =")
print((A @ v).round(4))

# %% [markdown]
# `MultiHeadSelfAttention` with the same weights gives the same numbers. As in the official code, it has a bias for $q$,
# $k$ and $v$. It also has a last matrix $U_{msa}$, which mixes the heads (equation 8). Here the bias is zero, and
# $U_{msa}$ is the identity.

# %%
attention = keras_vit.layers.MultiHeadSelfAttention(num_heads=1, head_dim=2)
attention.build((1, 3, 2))
attention.set_weights([np.hstack([U_q, U_k, U_v]), np.zeros(6), np.eye(2), np.zeros(2)])
output, weights = attention(z[None].astype("float32"), return_attention_scores=True)
print("the layer's attention:")
print(array(weights)[0, 0].round(4))
print("the layer's output:")
print(array(output)[0].round(4))
np.testing.assert_allclose(array(weights)[0, 0], A, atol=1e-6)
np.testing.assert_allclose(array(output)[0], A @ v, atol=1e-6)

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
for axes, (title, matrix) in zip(panels, {"scores": scores, "A, rows sum to 1": A, "A v": A @ v}.items(), strict=True):
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.6 * matrix.max())
    for (row, column), value in np.ndenumerate(matrix):
        axes.text(column, row, f"{value:.4f}", ha="center", va="center")
    key = "number" if title == "A v" else "key"
    axes.set(title=title, yticks=range(3), yticklabels=["token 1", "token 2", "token 3"])
    axes.set(xticks=range(matrix.shape[1]), xticklabels=[f"{key} {i + 1}" for i in range(matrix.shape[1])])

# %% [markdown]
# ## 5 Equation 2: attention in a block
#
# $$z'_\ell = \mathrm{MSA}(\mathrm{LN}(z_{\ell-1})) + z_{\ell-1}, \qquad \ell = 1 \dots L \tag{2}$$
#
# Several heads attend at the same time, each with a different part of $U_{qkv}$. Layer normalization comes before
# attention, and the block's input is added after attention. The tiny model has 6 heads of 85 numbers.


# %%
def layer_norm(x, layer):
    """Computes LN: scales each token to mean 0 and variance 1, then applies a learned scale and offset."""
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + layer.epsilon) * array(layer.gamma) + array(layer.beta)


def msa(x, layer):
    """Computes MSA by equations 5 to 8, for the tokens of one image, (N + 1, D)."""
    qkv = x @ array(layer.qkv.kernel) + array(layer.qkv.bias)
    q, k, v = qkv.reshape(len(x), 3, layer.num_heads, layer.key_dim).transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(layer.key_dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    heads = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
    return heads @ array(layer.out.kernel) + array(layer.out.bias)


attention = keras_vit.layers.MultiHeadSelfAttention(num_heads=6, head_dim=85)
norm = keras.layers.LayerNormalization(epsilon=1e-6)
z1 = attention(norm(z0)) + z0
by_hand = msa(layer_norm(array(z0)[0], norm), attention) + array(z0)[0]
print("U_qkv", attention.qkv.kernel.shape, " U_msa", attention.out.kernel.shape, " z'", tuple(z1.shape))
print(f"largest difference of NumPy from the layers: {np.abs(by_hand - array(z1)[0]).max():.1e}")

# %% [markdown]
# ## 6 Equation 3: the MLP
#
# $$z_\ell = \mathrm{MLP}(\mathrm{LN}(z'_\ell)) + z'_\ell, \qquad \ell = 1 \dots L \tag{3}$$
#
# The MLP applies two dense layers, with a GELU between them, to each token separately. Attention moves information
# between the tokens, and the MLP processes it. `TransformerBlock` computes equations 2 and 3 together.


# %%
def gelu(x):
    """Computes GELU in the tanh approximation, as the official code does."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mlp(x, layer):
    """Computes the MLP: a dense layer, GELU and a second dense layer."""
    hidden = gelu(x @ array(layer.dense_1.kernel) + array(layer.dense_1.bias))
    return hidden @ array(layer.dense_2.kernel) + array(layer.dense_2.bias)


def block_by_hand(z, block):
    """Computes equations 2 and 3."""
    z = msa(layer_norm(z, block.norm_1), block.attention) + z
    return mlp(layer_norm(z, block.norm_2), block.mlp) + z


block = keras_vit.layers.TransformerBlock(num_heads=6, mlp_dim=1024)
z1 = block(z0)
by_hand = block_by_hand(array(z0)[0], block)
print("U_1", block.mlp.dense_1.kernel.shape, " U_2", block.mlp.dense_2.kernel.shape, " z_1", tuple(z1.shape))
print(f"largest difference of NumPy from the layer: {np.abs(by_hand - array(z1)[0]).max():.1e}")

# %% [markdown]
# ## 7 Equation 4: the output
#
# $$y = \mathrm{LN}(z_L^0) \tag{4}$$
#
# After $L$ blocks, only the class token, at place 0, goes through a last layer normalization. Then a dense layer, the
# head, computes a score for each class from $y$. The head does not read the outputs of the patches, so the class token
# must have collected the information of the patches by attention.
#
# ## 8 The tiny model and its 8,459,762 parameters
#
# `keras_vit.ViT` puts these layers together. The arguments replace the sizes of the variant B/16.

# %%
keras.utils.set_random_seed(0)
model = keras_vit.ViT(
    "B/16",
    image_size=32,
    patch_size=P,
    hidden_dim=D,
    num_layers=4,
    num_heads=6,
    head_dim=85,
    mlp_dim=1024,
    num_classes=10,
    class_names=names,
)
print(f"{model.count_params():,} parameters")
for layer in model.layers:
    print(f"{layer.name:20} {type(layer).__name__:20} {tuple(layer.output.shape)!s:18} {layer.count_params():>9,}")

# %% [markdown]
# The next cell computes the same number of parameters, equation by equation:

# %%
qkv, out = D * 3 * 6 * 85 + 3 * 6 * 85, 6 * 85 * D + D
mlp_parameters = D * 1024 + 1024 + 1024 * D + D
parameters = {
    "(1) patch embedding E": P * P * C * D + D,
    "(1) class token": D,
    "(1) position embeddings": (64 + 1) * D,
    "(2) LN and MSA, 4 blocks": 4 * (2 * D + qkv + out),
    "(3) LN and MLP, 4 blocks": 4 * (2 * D + mlp_parameters),
    "(4) LN": 2 * D,
    "head": D * 10 + 10,
}
for name, number in parameters.items():
    print(f"{name:26} {number:>9,}")
print(f"{'together':26} {sum(parameters.values()):>9,}")
assert sum(parameters.values()) == model.count_params() == 8_459_762

# %% [markdown]
# ## 9 Training
#
# AdamW trains the model with a learning rate that rises for a tenth of the steps and then falls as a cosine. Each
# training picture is used once. The loss and the accuracy of each picture are measured before the model learns from it,
# so every point of the curve is measured on pictures that are new to the model. The test pictures are used for one
# number only, at the end.

# %%
batch_size = 32
parts = np.array_split(np.arange(len(train_images)), 12)
steps = sum(-(-len(part) // batch_size) for part in parts)
inputs, test_inputs = (keras_vit.preprocess_input(images, model) for images in (train_images, test_images))
model.compile(
    keras_vit.training.AdamW(keras_vit.training.WarmupDecay(4e-4, total_steps=steps, warmup_steps=steps // 10)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

curve = {"loss": [], "accuracy": []}
for part in parts:
    history = model.fit(inputs[part], train_labels[part], batch_size=batch_size, verbose=0).history
    for name, values in curve.items():
        values.append(history[name][0])
_, accuracy = model.evaluate(test_inputs, test_labels, batch_size=250, verbose=0)
print(f"test accuracy {accuracy:.4f} on {len(test_labels):,} pictures, after {len(train_labels):,} training pictures")

# %%
seen = np.cumsum([len(part) for part in parts])
figure, panels = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
for axes, (name, values) in zip(panels, curve.items(), strict=True):
    axes.plot(seen, values, "o-", markersize=3, label="new pictures")
    axes.set(xlabel="training pictures", title=name)
    axes.grid(alpha=0.3)
panels[0].axhline(np.log(10), color="grey", linestyle=":", label="guessing")
panels[1].axhline(0.1, color="grey", linestyle=":", label="guessing")
panels[1].axhline(accuracy, color="#ff7f0e", linestyle="--", label=f"test ({accuracy:.3f})")
for axes in panels:
    axes.legend(frameon=False)

# %% [markdown]
# The accuracy is far above guessing. It is far below what CIFAR-10 allows, because the training takes only a few
# minutes on a CPU. The paper explains why a ViT needs many pictures. A convolution has locality built in, and a ViT has
# to learn from the pictures which patches belong together, but "large scale training trumps inductive bias". For a
# better model, show it all 50,000 pictures for many epochs on a GPU, with
# `keras-vit train --recipe scratch_cifar10 --data cifar10`, or start from a pre-trained ViT.

# %%
shown = slice(0, 15)
probabilities = array(keras.ops.softmax(model.predict(test_inputs[shown], verbose=0)))
inspection.plot_predictions(test_images[shown], test_labels[shown], probabilities, names)

# %% [markdown]
# ## 10 The whole model in NumPy
#
# With the trained weights, NumPy computes the four equations in nine lines. Up to rounding, it gets the same scores as
# the model.


# %%
def vit_by_hand(image):
    """Computes equations 1 to 4 and the head for one image."""
    weights = {layer.name: layer for layer in model.layers}
    kernel, bias = array(weights["patch_embedding"].kernel), array(weights["patch_embedding"].bias)
    x_p = image.reshape(H // P, P, W // P, P, C).transpose(0, 2, 1, 3, 4).reshape(-1, P * P * C)
    z = np.concatenate([array(weights["class_token"].tokens)[0], x_p @ kernel.reshape(-1, D) + bias])
    z = z + array(weights["position_embedding"].embeddings)[0]
    for block in model.blocks:
        z = block_by_hand(z, block)
    y = layer_norm(z, weights["norm"])[0]
    return y @ array(weights["head"].kernel) + array(weights["head"].bias)


by_hand = np.stack([vit_by_hand(image) for image in test_inputs[shown]])
logits = model.predict(test_inputs[shown], verbose=0)
print("NumPy:", by_hand[0].round(3))
print("model:", logits[0].round(3))
print(f"largest difference in {len(logits)} pictures: {np.abs(by_hand - logits).max():.1e}")
np.testing.assert_allclose(by_hand, logits, atol=1e-3)
