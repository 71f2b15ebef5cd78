"""What a competitor writes in a notebook: a table of labels -> folds -> fine-tuning in two stages -> submission.csv.

python notebook.py FOLDER, which holds train.csv (id, label), test.csv (id), images/ID.png and weights.npz.
"""

import csv
import sys
from pathlib import Path

import keras

import keras_vit
import keras_vit.data
from keras_vit.training import Resume, WarmupDecay, freeze, sgd, unfreeze

folder = Path(sys.argv[1])
keras.config.set_dtype_policy("mixed_bfloat16")
keras.utils.set_random_seed(0)

with open(folder / "train.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
table = {name: [row[name] for row in rows] for name in ("id", "label")}
names = sorted(set(table["label"]))

model = keras_vit.from_pretrained(
    folder / "weights.npz", num_heads=3, num_classes=len(names), class_names=names, drop_path_rate=0.1
)
images = {
    "directory": folder / "images",
    "path_column": "id",
    "extension": ".png",
    "preprocessing": model,
    "batch_size": 8,
}
training, validation = next(keras_vit.data.folds(table, 3, label_column="label", seed=0))
train = keras_vit.data.from_dataframe(training, class_names=names, policy="light2", **images)
valid = keras_vit.data.from_dataframe(validation, class_names=names, training=False, labels="one_hot", **images)


def fit(stage, learning_rate, epochs):
    """Trains what is not frozen, and keeps the best and the last state of the stage."""
    steps = epochs * len(train)
    model.compile(
        optimizer=sgd(WarmupDecay(learning_rate, total_steps=steps, warmup_steps=steps // 10)),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    keras_vit.training.preflight(model, train)
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(folder / f"{stage}.keras", monitor="val_loss", save_best_only=True),
    ]
    return keras_vit.training.fit(
        model,
        lambda epoch: train,
        epochs,
        resume=Resume(folder / stage),
        callbacks=callbacks,
        validation_data=valid,
        verbose=2,
    )


freeze(model)
fit("head", 0.1, epochs=2)
unfreeze(model)
fit("all", 0.01, epochs=2)

best = keras.saving.load_model(folder / "all.keras")
test = keras_vit.data.from_dataframe(folder / "test.csv", label_column=None, **{**images, "preprocessing": best})
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(best.predict(test, verbose=0)))
answers = [prediction[0] for prediction in keras_vit.decode_predictions(probabilities, best, top=1)]
with open(folder / "submission.csv", "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "label"])
    writer.writerows([Path(path).stem, name] for path, (_, name, _) in zip(test.file_paths, answers, strict=True))
print(f"{len(answers)} answers")
