"""Data parallelism on PyTorch: several processes, each with a device and its part of every batch, train one model.

Each process runs the same script. `initialize` comes before the model is built, `synchronize` after `compile`:

    torch_processes.initialize("10.0.0.1:1234", num_processes=2, process_id=0)
    model = keras_vit.ViT(...)
    model.compile(...)
    torch_processes.synchronize(model)
    model.fit(part_of_this_process, ...)
"""

import datetime
import functools
import hashlib
import os
from collections import defaultdict

import keras
import numpy as np


def initialize(coordinator, num_processes, process_id, timeout=600.0):
    """Joins this process to the others; returns when all are there. A GPU of its own is chosen where there are some.

    With a group that `torch.distributed` already has, it only checks that the group agrees.

    Args:
        coordinator: Address of process 0, "host:port".
        num_processes: Int, the number of processes.
        process_id: Int, the number of this process, from 0.
        timeout: Seconds to wait for another process, here and in each exchange, before an error.

    Raises:
        ValueError: If the group that is there has other numbers.
        RuntimeError: On another backend than PyTorch.
    """
    dist = _distributed()
    if dist.is_initialized():
        found = dist.get_world_size(), dist.get_rank()
        if found != (num_processes, process_id):
            raise ValueError(
                f"Expected the group of torch.distributed to have num_processes={num_processes} and here "
                f"process_id={process_id}. Received: a group with {found[0]} processes, here process {found[1]}"
            )
        return
    import torch

    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", process_id % gpus)))
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        init_method=f"tcp://{coordinator}",
        world_size=num_processes,
        rank=process_id,
        timeout=datetime.timedelta(seconds=timeout),
    )


def num_processes() -> int:
    """Returns the number of processes; 1 without `initialize`."""
    dist = _distributed()
    return dist.get_world_size() if dist.is_initialized() else 1


def process_id() -> int:
    """Returns the number of this process, from 0."""
    dist = _distributed()
    return dist.get_rank() if dist.is_initialized() else 0


def barrier():
    """Waits until all processes are here."""
    if num_processes() > 1:
        _distributed().barrier()


def agree(number):
    """Returns the integer that process 0 gave; all processes must call it."""
    found = [number]
    _distributed().broadcast_object_list(found, src=0)
    return found[0]


def is_synchronized(model):
    """Whether `synchronize` was called for a model, and for each weight that trains."""
    weights = (variable.value for variable in model.trainable_variables)
    return hasattr(model, "_in_test_step") and all(hasattr(w, "averaged_over_processes") for w in weights)


def synchronize(model):
    """Makes the processes train a compiled `keras.Model` as one, on batches that are the parts of one large batch.

    Call it in all processes, between `compile` and `fit`; again after weights are loaded, unfrozen or added. All
    variables become those of process 0, and random numbers differ by process (see `spread_seeds`). From then on,
    gradients are averaged over the processes in each backward pass, as are the loss and metrics, in the logs of
    training steps too. All processes must run the same steps, on as many images each: `fit` waits for the others in
    each step. Only `evaluate` may have other numbers of batches, at least one; its logs per batch are this process's.

    The variables of a metric must be sums over images, as are those of all `keras.metrics`, not a maximum or the like.
    The statistics of `keras.layers.BatchNormalization` are of each process's part alone, and a
    `Distiller` needs the same teacher in each. Callbacks run in each process: write files in process 0 only, and let
    none stop one process alone. Without other processes, nothing is done.

    Raises:
        ValueError: If the model is not compiled or built, is compiled with `jit_compile=True`, or is not the same in
            all processes.
        RuntimeError: On another backend than PyTorch.
    """
    _distributed()
    if not (model.compiled and model.built):
        state = f"compiled={model.compiled}, built={model.built}"
        raise ValueError(f"Expected `model` to be compiled and built. Received: {model.name!r}, with {state}")
    if model.jit_compile is True:
        raise ValueError(f"Expected `model` to be compiled with jit_compile=False. Received: {model.name!r}, with True")
    if num_processes() == 1:
        return
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    _broadcast(model.variables + model.optimizer.variables)
    # Not torch.nn.parallel.DistributedDataParallel, as in the trainer of Keras 3.16: it averages only what a forward
    # pass through the wrapper has prepared, makes the random states alike again, and its steps wait for each other in
    # evaluation too. Any value but None keeps that trainer from it.
    if hasattr(model, "ddp_model"):
        object.__setattr__(model, "ddp_model", False)
    for variable in model.trainable_variables:
        # Marked, for a weight may be synchronized again, alone or in a model that wraps this one.
        if not hasattr(variable.value, "averaged_over_processes"):
            variable.value.averaged_over_processes = variable.value.register_post_accumulate_grad_hook(_average)
    if not hasattr(model, "_in_test_step"):
        _share_metrics(model)
    spread_seeds(model)


def spread_seeds(model):
    """Makes the processes draw different random numbers: the others from seeds that follow from process 0's state.

    Process 0 goes on as if it were alone. Call it in all processes whenever they have set the same seeds or restored
    the same random states.
    """
    dist = _distributed()
    if num_processes() == 1:
        return
    import torch

    states = [v for v in model.variables if v.name == "seed_generator_state"]
    arrays = [keras.ops.convert_to_numpy(v) for v in states] + [torch.get_rng_state().numpy()]
    if torch.cuda.is_available():
        arrays.append(torch.cuda.get_rng_state().numpy())
    entropy = [hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()]
    dist.broadcast_object_list(entropy, src=0)
    if process_id() > 0:
        sequence = np.random.SeedSequence([int(entropy[0], 16), process_id()])
        # Keras holds the states of its generators as signed integers.
        first, *others = (int(seed) >> 1 for seed in sequence.generate_state(len(states) + 1))
        # Keras' unseeded Dropout draws from PyTorch's own generator.
        keras.utils.set_random_seed(first)
        for variable, seed in zip(states, others, strict=True):
            variable.assign([seed, 0])


def _distributed():
    if keras.backend.backend() != "torch":
        raise RuntimeError(f"Expected the PyTorch backend. Received: KERAS_BACKEND={keras.backend.backend()}")
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError("Expected a PyTorch with torch.distributed. Received: one built without it")
    return torch.distributed


def _broadcast(variables):
    dist = _distributed()
    models = [None] * num_processes()
    dist.all_gather_object(models, [(tuple(v.shape), v.dtype, v.trainable) for v in variables])
    other = next((i for i, found in enumerate(models) if found != models[0]), None)
    # All raise, as one process alone would leave the others waiting.
    if other is not None:
        raise ValueError(
            "Expected `model` to have the same variables in each process, as many of them trainable. "
            f"Received: {len(models[0])} in process 0 and {len(models[other])} in process {other}, not all alike"
        )
    for variable in variables:
        value = variable.value.detach().contiguous()
        dist.broadcast(value, src=0)
        variable.assign(value)


def _average(parameter):
    """Averages a gradient over the processes, while the backward pass goes on to others.

    The passes are of the same graph in each process, so that the gradients come in the same order.
    """
    import torch

    gradient = parameter.grad.div_(num_processes())
    # Itself, unless the weight is a transpose.
    average = gradient.contiguous()
    work = torch.distributed.all_reduce(average, async_op=True)

    def finish():
        work.wait()
        gradient.copy_(average)

    # At the end of this backward pass, as FullyShardedDataParallel does.
    torch.autograd.Variable._execution_engine.queue_callback(finish)


def _share_metrics(model):
    """Makes the model's logs those of all processes."""
    model._in_test_step = False
    test_step = model.test_step
    # Keras 3.16 has sums of its own above Keras' first method, also in each step of an evaluation.
    *_, base = (c.get_metrics_result for c in type(model).__mro__ if "get_metrics_result" in vars(c))

    @functools.wraps(test_step)
    def local_test_step(*args):
        # One process may have more batches than another.
        model._in_test_step = True
        try:
            return test_step(*args)
        finally:
            model._in_test_step = False

    def get_metrics_result():
        variables = model.metrics_variables
        # On the meta device, Keras only builds the metrics.
        if model._in_test_step or any(v.value.is_meta for v in variables):
            return base(model)
        with keras.StatelessScope(state_mapping=list(zip(variables, sums(variables), strict=True))):
            return base(model)

    def get_metrics_result_or_logs(logs):
        # If a step leaves some metrics out, Keras takes the logs of the last step, which are of this process alone.
        found = get_metrics_result()
        return {name: found.get(name, value) for name, value in logs.items()} if isinstance(logs, dict) else logs

    model.test_step = local_test_step
    model.get_metrics_result = get_metrics_result
    model._get_metrics_result_or_logs = get_metrics_result_or_logs
    # It may hold the step of before.
    model.test_function = None


def sums(variables):
    """Returns the values of variables, summed over the processes in one exchange for each dtype."""
    import torch

    places = defaultdict(list)
    for i, variable in enumerate(variables):
        places[variable.value.dtype].append(i)
    sums = [None] * len(variables)
    for indices in places.values():
        values = [variables[i].value.detach() for i in indices]
        flat = torch.cat([value.reshape(-1) for value in values])
        torch.distributed.all_reduce(flat)
        for i, value, part in zip(indices, values, flat.split([v.numel() for v in values]), strict=True):
            sums[i] = part.reshape(value.shape)
    return sums
