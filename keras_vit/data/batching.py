"""Batches of the images that decode, by either of two ways that give the same ones.

Both take a dataset of (index, record) whose indices count up by one, `decode`, which raises where an image is broken,
and `prepare`, which makes (index, image, label) of what `decode` returns.
"""

# Images, at least and in whole batches, whose records are held so that a batch can be made again.
WINDOW = 2048


def one_by_one(data, decode, prepare, batch_size, parallel, drop_remainder=False):
    """Passes over each broken image, between the two functions."""
    # `prepare` apart, since tf.data makes one step of `map` and `batch` only where nothing stands between them.
    data = data.map(decode, parallel).ignore_errors().map(prepare, parallel)
    return data.batch(batch_size, drop_remainder)


def together(data, decode, prepare, batch_size, parallel, drop_remainder=False):
    """Makes each batch in one step, and again one by one if an image of it is broken.

    Where none is broken this takes less time, since no image is handed from thread to thread.
    """
    import tensorflow as tf

    def whole(index, record):
        index, image, label = decode(index, record)
        # What follows from the index alone, as random numbers do, waits for the image: a loop that ran already while
        # the image turns out to be broken would make the batch's error a cancellation, which nothing ignores.
        with tf.control_dependencies([image]):
            index = tf.identity(index)
        return prepare(index, image, label)

    def window(indices, records):
        elements = tf.data.Dataset.zip(indices, records)
        begin = indices.take(1).get_single_element()
        batches = elements.map(whole, parallel).batch(batch_size).ignore_errors()
        # An empty batch, whose index says where the window ends, so that the last batch too can be missed.
        _, *nothing = blank(batches.element_spec)
        end = tf.data.Dataset.from_tensors(((begin + indices.cardinality())[None], *nothing))

        def follow(expected, batch):
            """Adds to a batch the index that its first image should have."""
            return batch[0][-1] + 1, (expected, *batch)

        def fill(expected, indices, images, labels):
            num_missing = indices[0] - expected

            def again(start):
                missing = elements.skip(start).take(num_missing)
                return one_by_one(missing, decode, prepare, batch_size, parallel)

            # In `flat_map`, so that nothing is set up where nothing is missing.
            missing = tf.data.Dataset.from_tensors(expected - begin).take(num_missing).flat_map(again)
            # All of a batch, and nothing of the end, which holds no image.
            here = tf.data.Dataset.from_tensors((indices, images, labels)).take(tf.shape(images, out_type="int64")[0])
            return missing.concatenate(here)

        return batches.concatenate(end).scan(begin, follow).flat_map(fill)

    windows = data.window(batch_size * -(-WINDOW // batch_size))
    return windows.flat_map(window).rebatch(batch_size, drop_remainder)


def blank(spec):
    """An element with nothing in it."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda s: tf.zeros([size or 0 for size in s.shape], s.dtype), spec)
