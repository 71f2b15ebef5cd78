# %% [markdown]
# # From the notebook to a server
#
# This notebook exports a model in two ways. A server runs the model as a SavedModel, and clients send the bytes of
# image files to it over HTTP. onnxruntime runs the model as an ONNX file, without Keras. At the end, the notebook
# compares the answers of Keras, of the server and of onnxruntime. All three predict the same classes.
#
# **Contents**: 1 A model · 2 SavedModel · 3 The server · 4 A client · 5 Files that are not pictures · 6 ONNX · 7 The
# three answers · 8 Stop the server
#
# This notebook needs `keras_vit` with the extras `examples` and `formats`, and the repository's folder
# `examples/serve`. The model may run on TensorFlow, JAX or PyTorch; the environment variable `KERAS_BACKEND` chooses
# one. TensorFlow writes the SavedModel, and PyTorch writes the ONNX file. If the model runs on another backend, the
# file is written in a separate process.
#
# `samples.py`, which lies beside this notebook in the repository, finds the pictures and Google's ViT-B/16, trained on
# ImageNet (`ViT-B_16-224.npz`). Without these files, a small ViT is trained on scikit-learn's handwritten digits and
# used instead. In Kaggle and Colab, clone the repository, and copy `samples.py` to the working folder. You can export
# any model of this package, or your own model that contains one, in the same way.

# %%
import atexit
import base64
import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import samples

import keras_vit
from keras_vit import export

paths, labels = (values[:4] for values in samples.photos())
samples.show(paths, labels, columns=4)

# %% [markdown]
# ## 1 A model

# %%
model = keras_vit.from_pretrained(samples.weights())
print(f"{model.count_params():,} parameters, images of {model.input_shape[1:]}, {model.config.num_classes} classes")

# %% [markdown]
# These are the model's answers in the notebook. `read_image` resizes and crops a picture as in the evaluation of the
# checkpoint, and `preprocess_input` scales it. Both use the model's preprocessing, which the SavedModel will contain
# too.

# %%
raw = np.stack([keras_vit.read_image(path, model) for path in paths])
logits = model.predict(keras_vit.preprocess_input(raw, model), verbose=0)
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
best = [row[0] for row in keras_vit.decode_predictions(probabilities, model, top=1)]
for path, (_, name, probability) in zip(paths, best, strict=True):
    print(f"{path.name:16} {name:24} {probability:.4f}")

# %% [markdown]
# ## 2 SavedModel
#
# `postprocess="classify"` adds probabilities and the names of the most probable classes to the outputs. The folder's
# name, 1, is the version of the model: a server loads the highest version. The export is compared with the model before
# the folder gets this name.

# %%
# This folder contains all files of the notebook. It is deleted at the end of the notebook.
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
report = export.saved_model(model, folder / "models" / "vit" / "1", postprocess="classify", top=3)
print(f"{report['size'] / 1e6:.1f} MB, outputs at most {report['difference']:.1e} from the model's")

# %% [markdown]
# The SavedModel has three signatures, whichever backend the model comes from:
#
# | signature | a row of the request |
# |---|---|
# | `serving_default` | `images`: the input of the model, float32 |
# | `serving_uint8` | `images`: raw pixels, 0 to 255 |
# | `serving_bytes` | `image_bytes`: a JPEG or PNG file |
#
# With `serving_bytes`, the SavedModel decodes, resizes and scales the images, so a client needs no image library.
#
# ## 3 The server
#
# `examples/serve/server.py` has the REST interface of TensorFlow Serving. It needs TensorFlow, but not Keras or this
# package. Here it runs as a separate process, on a free port. For production, `examples/serve/docker-compose.yml`
# starts TensorFlow Serving on the same folder.

# %%
# The folder lies beside this notebook's folder. If the notebook runs elsewhere, the clone of keras_vit contains it.
places = Path("../serve"), Path(keras_vit.__file__).parents[1] / "examples" / "serve"
serve = next(filter(Path.is_dir, places), None)
if serve is None:
    raise FileNotFoundError("Expected the folder examples/serve of the repository. Received: a notebook without it")

server = subprocess.Popen(
    [sys.executable, serve / "server.py", folder / "models" / "vit", "--port", "0"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
# Stop the server at the end of the notebook, even if a later cell fails.
atexit.register(server.kill)
# The server prints its address once the model is loaded.
line = server.stdout.readline()
url = re.search(r"http://\S+(?=:predict)", line)[0]
with urllib.request.urlopen(url, timeout=60) as response:
    print(response.status, json.load(response))

# %% [markdown]
# ## 4 A client
#
# A request is a JSON object with a list of files in base64. A client only has to send this object, so it can be written
# in any language:

# %%
rows = [{"image_bytes": {"b64": base64.b64encode(path.read_bytes()).decode()}} for path in paths]
body = json.dumps({"signature_name": "serving_bytes", "instances": rows}).encode()
with urllib.request.urlopen(f"{url}:predict", body, timeout=120) as response:
    answers = json.load(response)["predictions"]

for path, answer in zip(paths, answers, strict=True):
    top = ", ".join(f"{n} {s:.4f}" for n, s in zip(answer["labels"], answer["scores"], strict=True))
    print(f"{path.name:16} {answer['status']}: {top}")

# %% [markdown]
# `examples/serve/client.py` does the same on the command line, with only the standard library:

# %%
command = [sys.executable, (serve / "client.py").resolve(), "--url", url, *(path.name for path in paths[:1])]
done = subprocess.run(command, cwd=paths[0].parent, capture_output=True, text=True)
print(done.stdout or done.stderr)

# %% [markdown]
# ## 5 Files that are not pictures
#
# A file that cannot be read gets an error status, and the other pictures of the request still get their answers. An
# invalid request is refused with a reason.

# %%
damaged = paths[0].read_bytes()[:100]
rows = [{"image_bytes": {"b64": base64.b64encode(data).decode()}} for data in (damaged, b"text", paths[0].read_bytes())]
body = json.dumps({"signature_name": "serving_bytes", "instances": rows}).encode()
with urllib.request.urlopen(f"{url}:predict", body, timeout=120) as response:
    for answer in json.load(response)["predictions"]:
        print(answer["status"], answer["labels"][:1])

try:
    urllib.request.urlopen(f"{url}:predict", b'{"instances": [[1, 2, 3]]}', timeout=60)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["error"])

# %% [markdown]
# ## 6 ONNX
#
# An ONNX file contains only the network, so the client scales the images. Any program with onnxruntime can run it, on
# any machine, without Keras and without this package.

# %%
with warnings.catch_warnings():
    # Ignore warnings about a deprecated function in PyTorch's exporter.
    warnings.simplefilter("ignore", FutureWarning)
    report = export.onnx(model, folder / "vit.onnx")
print(f"{report['size'] / 1e6:.1f} MB, outputs at most {report['difference']:.1e} from the model's")

session = onnxruntime.InferenceSession(report["path"], providers=["CPUExecutionProvider"])
for kind, values in (("input", session.get_inputs()), ("output", session.get_outputs())):
    for value in values:
        print(f"{kind} {value.name}: {value.type}, any number of {value.shape[1:]}")

# %%
(onnx_logits,) = session.run(["outputs"], {"images": keras_vit.preprocess_input(raw, model)})
print(f"largest difference of a logit: {np.abs(onnx_logits - logits).max():.1e}")

# %% [markdown]
# ## 7 The three answers
#
# The server decoded and resized the files itself, with TensorFlow, and the notebook used Pillow. The probabilities of
# the server may therefore differ a little from those of the notebook. onnxruntime got the same pixels as the model in
# the notebook.

# %%
served = np.array([answer["probabilities"] for answer in answers])
exponentials = np.exp(onnx_logits - onnx_logits.max(axis=-1, keepdims=True))
from_onnx = exponentials / exponentials.sum(axis=-1, keepdims=True)
runtimes = {"Keras": probabilities, "server": served, "onnxruntime": from_onnx}
for name, found in runtimes.items():
    print(f"{name:12} classes {found.argmax(axis=1).tolist()}, at most {np.abs(found - probabilities).max():.1e} away")
assert all((found.argmax(axis=1) == probabilities.argmax(axis=1)).all() for found in runtimes.values())

# %%
figure, panels = plt.subplots(2, len(paths), figsize=(10, 4.6), height_ratios=(3, 2), layout="constrained")
for i, (top, bottom) in enumerate(panels.T):
    top.imshow(raw[i].astype("uint8").squeeze(), cmap="gray")
    top.set_axis_off()
    top.set_title(best[i][1].replace("_", " "), fontsize=10)
    bars = bottom.barh(list(runtimes), [found[i, probabilities[i].argmax()] for found in runtimes.values()])
    bottom.bar_label(bars, fmt="%.4f", padding=3, fontsize=8)
    bottom.set(xlim=(0, 1.4), xticks=[0, 0.5, 1], xlabel="probability")
    bottom.invert_yaxis()
    if i:
        bottom.set_yticks([])

# %% [markdown]
# ## 8 Stop the server
#
# `terminate` ends the process, and `wait` returns once it has ended. After that, the server refuses connections.

# %%
server.terminate()
server.wait(timeout=30)
server.stdout.close()
temporary.cleanup()
try:
    urllib.request.urlopen(url, timeout=5)
except urllib.error.URLError as error:
    print("stopped:", type(error.reason).__name__)
