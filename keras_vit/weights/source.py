"""Describes the checkpoint format of a code base, such as timm, by a table of weight names."""

import dataclasses
import functools
import re
from typing import NamedTuple

from keras_vit.weights import codecs

# The prefixes of weight paths in a transformer block, and in a residual unit of a ResNet.
BLOCK = "block_{block:02d}/"
UNIT = "stage_{stage}_unit_{unit:02d}/"
_TRANSPOSED = codecs.Transposed()


class Name(NamedTuple):
    """The file's keys for a weight of the model, and the codec that converts the arrays of these keys."""

    keys: tuple
    codec: codecs.Identity = codecs.Identity()


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The checkpoint format of a code base, and the settings of its models.

    A setting is None if it is not the same for all models of the code base.
    """

    name: str
    # {weight path: Name}, with the model's first layer first. Paths and keys may contain the numbers {block:02d},
    # {stage} and {unit:02d}. Keys may also contain {stage0} and {unit0}: the same numbers counted from 0.
    names: dict
    activation: str | None = "gelu"
    layer_norm_epsilon: float | None = 1e-6
    # The ResNet of hybrids and of BiT has the normalization epsilons of this code base.
    resnet_epsilons: str | None = "official"
    # The padding of BiT's max pooling: "lowest" or "zeros".
    pool_padding: str | None = None
    position_interpolation: str = "linear"
    # True if the class token usually has a position embedding. If the length of a position table fits a grid both with
    # and without this embedding, this setting decides.
    class_token_position: bool = True
    # The arguments of `Preprocessing`, or None if they differ between the published models.
    preprocessing: dict | None = None
    # (regular expression, replacement) pairs that convert other spellings of keys.
    aliases: tuple = ()
    # Regular expression of keys that hold no weights of the model, such as an optimizer's state.
    ignored: str = r"(?!)"
    # (regular expression of keys, description) pairs for layers that keras_vit does not support.
    refused: tuple = ()
    # {setting in a folder's config: its only supported value}.
    config: dict = dataclasses.field(default_factory=dict)
    # Prefixes that may precede all keys of a file.
    prefixes: tuple = ()
    # If an array contains the weights of all blocks, stacked on the first axis: (prefix of such keys, template of the
    # prefix for a single block).
    stacked: tuple | None = None
    # {name: entries that replace entries of `names`}, for models with other keys. When a file is read, the entries
    # apply if the file contains all their keys. When a file is written, they apply if the config field `name` is set.
    spellings: dict = dataclasses.field(default_factory=dict)
    # The activation of gated MLPs, if it differs from `activation`.
    gated_activation: str | None = None
    # The width of an attention head, if it is the same in all models.
    head_dim: int | None = None
    # The family of the models.
    family: str = "vit"
    # Regular expression of a key that only this source's files have, if other sources have the same first layer.
    mark: str | None = None
    # The values of `model_type` in config.json of transformers folders with this format.
    model_types: tuple = ()

    def canonical_keys(self, keys):
        """Returns ({key as spelled in `names`: key in the file}, [keys of the file that hold no weights])."""
        canonical, ignored = {}, []
        for key in keys:
            name = self._canonical(key)
            if name is None:
                ignored.append(key)
                continue
            if name in canonical:
                raise ValueError(f"The file holds the same weight twice, as {canonical[name]!r} and as {key!r}.")
            canonical[name] = key
        return canonical, ignored

    def _canonical(self, key):
        """Returns a file's key as spelled in `names`, or None if it holds no weights."""
        name = unwrapped(key)
        if name == _COUNTER or re.match(self.ignored, name):
            return None
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name

    def refuse_keys(self, path, keys, model_name=None):
        """Raises an error if a key, spelled as in `names`, belongs to a layer that keras_vit does not have."""
        for pattern, part in self.refused:
            key = next((key for key in keys if re.match(pattern, key)), None)
            if key is not None:
                raise self.refusal(
                    path, model_name, f"{part}, which this package does not have. Received: the key {key!r}"
                )

    def refusal(self, path, model_name, what):
        """Returns the error for a file of an unsupported model. `what` is the property that is not supported."""
        name = f" ({model_name})" if model_name else ""
        return ValueError(f"Cannot load {path!r}: it is a model of {self.name}{name} with {what}")

    def with_variant_names(self, keys):
        """Returns this source with the alternative key names (`spellings`) that a file with `keys` uses."""

        def holds(rows):
            return all(key.format(block=0, stage0=0, unit0=0) in keys for name in rows.values() for key in name.keys)

        return self._with(rows for rows in self.spellings.values() if holds(rows))

    def spelled_for(self, config):
        """Returns this source for writing a model. Applies the spellings whose config fields are set in `config`."""
        return self._with(rows for field, rows in self.spellings.items() if getattr(config, field, False))

    def _with(self, spellings):
        names = dict(self.names)
        for rows in spellings:
            names |= rows
        return dataclasses.replace(self, names=names)

    def find(self, weight):
        """Returns the `Name` (file keys and codec) for the path of a model weight, or None."""
        for path, name in self.names.items():
            numbers = _numbers(path, weight)
            if numbers is not None:
                return Name(tuple(key.format(**numbers) for key in name.keys), name.codec)
        return None

    def find_weight_path(self, key):
        """Returns the path of the first model weight with the key `key`, or None. `key` is spelled as in `names`."""
        for path, name in self.names.items():
            for own in name.keys:
                numbers = _numbers(own, key)
                if numbers is not None:
                    return path.format(**numbers)
        return None

    def find_layer_name(self, key):
        """Returns the name of the model layer with the key `key`, or None. `key` is spelled as in `names`."""
        weight = self.find_weight_path(key)
        return weight and weight.split("/")[0]

    def matches(self, keys):
        """Returns True if the keys include this source's first layer."""
        entrance = next(iter(self.names.values())).keys[0]
        return any(self._canonical(key) == entrance for key in keys)

    def recognises(self, keys):
        """Returns True if the keys include this source's first layer, and its mark if it has one."""
        return (self.mark is None or any(re.match(self.mark, key) for key in keys)) and self.matches(keys)


def unwrapped(key):
    """Returns a key without the prefixes of DistributedDataParallel, torch.compile and transformers' TimmWrapper."""
    return _WRAPPERS.sub("", key)


_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|timm_model)\.)+")
# torch.optim.swa_utils.AveragedModel stores its number of updates under this key.
_COUNTER = "n_averaged"


def _numbers(template, text):
    """Parses "block_07/" with the template "block_{block:02d}/" to {"block": 7}. Returns None without a match."""
    match = _pattern(template).fullmatch(text)
    if match is None:
        return None
    found = {field: int(number) for field, number in match.groupdict().items()}
    for field in ("stage", "unit"):
        if field in found:
            found[f"{field}0"] = found[field] - 1
        elif f"{field}0" in found:
            found[field] = found[f"{field}0"] + 1
    return found


@functools.cache
def _pattern(template):
    parts = re.split(r"\{(\w+)(?::\w+)?\}", template)
    return re.compile("".join(rf"(?P<{part}>\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))


# Rows shared by several sources ---------------------------------------------------------------------------------------


def dense(ours, theirs, codec=_TRANSPOSED):
    """Returns the `names` entries of a dense layer. `ours` is its path, and `theirs` is its prefix in the file."""
    return {f"{ours}/kernel": Name((f"{theirs}.weight",), codec), f"{ours}/bias": Name((f"{theirs}.bias",))}


def norm(ours, theirs):
    """Returns the `names` entries of a normalization layer. Like PyTorch, the file calls its arrays weight and bias."""
    return {f"{ours}/gamma": Name((f"{theirs}.weight",)), f"{ours}/beta": Name((f"{theirs}.bias",))}


def block(prefix, norm_1, out, norm_2, dense_1, dense_2, scales=()):
    """Returns the `names` entries of a transformer block, except its queries, keys and values.

    The arguments are the names of the block's modules in the file.
    """
    rows = {**norm(f"{BLOCK}norm_1", prefix + norm_1), **dense(f"{BLOCK}attention/out", prefix + out)}
    rows |= norm(f"{BLOCK}norm_2", prefix + norm_2)
    for i, theirs in enumerate((dense_1, dense_2), start=1):
        rows |= dense(f"{BLOCK}mlp/dense_{i}", prefix + theirs)
    return rows | {f"{BLOCK}layer_scale_{i}/gamma": Name((prefix + scale,)) for i, scale in enumerate(scales, start=1)}


def gated(first, gate, up):
    """Returns the `names` entries of a gated MLP's first layer. The file stores it as two layers, `gate` and `up`."""
    return {
        f"{first}/kernel": Name((f"{gate}.weight", f"{up}.weight"), codecs.Fused(_TRANSPOSED, 2)),
        f"{first}/bias": Name((f"{gate}.bias", f"{up}.bias"), codecs.Fused(codecs.Identity(), 2)),
    }


def pooling(probe, parts, out, norm_, mlp):
    """Returns the `names` entries of attention pooling. The arguments are keys and prefixes in the file.

    `parts` are (layer, kernel key, bias key, part, count) for query, key and value; see `codecs.Part` for the last two.
    """
    rows = {"pooling/probe": Name((probe,))}
    for ours, kernel, bias, part, count in parts:
        row = codecs.Part(_TRANSPOSED, part, count)
        rows[f"pooling/attention/{ours}/kernel"] = Name((kernel,), row)
        rows[f"pooling/attention/{ours}/bias"] = Name((bias,), codecs.Part(codecs.Flat(), part, count))
    return {
        **rows,
        **dense("pooling/attention/attention_output", out, codecs.Transposed(inputs=2)),
        **norm("pooling/norm", norm_),
        **dense("pooling/mlp/dense_1", f"{mlp}.fc1"),
        **dense("pooling/mlp/dense_2", f"{mlp}.fc2"),
    }


def resnet(stem, unit, norms):
    """Returns the `names` entries of a ResNet. `stem` and `unit` are the file's prefixes of the stem and of a unit.

    `norms` lists which convolutions of a unit (1, 2, 3 and "proj") have a norm.
    """
    rows = {"root_conv/kernel": Name((f"{stem}.weight",), codecs.TORCH_CONV)}
    for i in (1, 2, 3, "proj"):
        module = f"{unit}downsample." if i == "proj" else unit
        number = "" if i == "proj" else i
        rows[f"{UNIT}conv_{i}/kernel"] = Name((f"{module}conv{number}.weight",), codecs.TORCH_CONV)
        if i in norms:
            rows |= norm(f"{UNIT}norm_{i}", f"{module}norm{number}")
    return rows
