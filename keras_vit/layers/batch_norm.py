import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class BatchNorm(keras.layers.BatchNormalization):
    """Keras' batch normalization over the last axis, changed so that PyTorch compiles a training step in one graph.

    Keras' own layer passes the reduction axes to PyTorch as a `TrackedList`, Keras' subclass of list. PyTorch's
    compiler splits the graph at such a list.
    """

    def call(self, inputs, training=None):
        if not (training and self.trainable):
            return super().call(inputs)
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        mean, variance = ops.moments(x, axes=tuple(range(len(x.shape) - 1)))
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(ops.cast(moving, x.dtype) * self.momentum + value * (1 - self.momentum))
        offset, scale = (ops.cast(weight, x.dtype) for weight in (self.beta, self.gamma))
        outputs = ops.batch_normalization(x, mean, variance, -1, offset, scale, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)
