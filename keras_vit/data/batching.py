"""Batches that keep their places whichever of their images are broken."""

# Images, at least and in whole batches, whose records are held so that a batch can be made again.
WINDOW = 2048


def in_place(data, decode, prepare, stand_in, batch_size, parallel, *, full=False, drop_remainder=False):
    """Makes the k-th batch of the k-th `batch_size` records, so that the number of batches is known beforehand.

    A batch is made in one step, and again one by one if an image of it is broken. Where none is broken this takes less
    time than looking at each, since no image is handed from thread to thread.

    Args:
        data: tf.data.Dataset of (index, record) whose indices count up by one.
        decode: Function of an index and a record that returns (index, image, label) and raises where the image is
            broken.
        prepare: Function of what `decode` returns that returns the same, ready.
        stand_in: A record that decodes: a batch without any sound image is made of it.
        batch_size: Integer.
        parallel: Integer, threads.
        full: Bool. True fills the places of broken images by repeating those of the batch; False leaves them out.
        drop_remainder: Bool, leave out the last batch where there are too few records for it.

    Returns:
        tf.data.Dataset of (index of the first record, images, labels, (indices, names, encoded images) of the broken
        records).
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
        batches = elements.map(whole, parallel).batch(batch_size, drop_remainder).ignore_errors()
        # An empty batch, whose index says where the window ends, so that the last batch too can be missed.
        count = indices.cardinality()
        end = begin + (count // batch_size * batch_size if drop_remainder else count)
        _, *nothing = _blank(batches.element_spec)
        end = tf.data.Dataset.from_tensors((end[None], *nothing))
        sound = _blank(elements.map(_broken).batch(batch_size).element_spec)

        def follow(expected, batch):
            """Adds to a batch the index that its first image should have."""
            return batch[0][0] + batch_size, (expected, *batch)

        def again(start):
            """The one batch that begins at an index, of its images that decode."""
            places = elements.skip(start - begin).take(batch_size)
            found = places.map(decode, parallel).ignore_errors().map(prepare, parallel).batch(batch_size)

            def lone(index):
                _, image, label = prepare(*decode(index, stand_in))
                return tf.constant(-1, "int64"), image, label

            found = found.concatenate(tf.data.Dataset.from_tensors(start).map(lone).batch(1)).take(1)
            return tf.data.Dataset.zip(places.map(_broken).batch(batch_size), found).map(judge)

        def judge(records, found):
            present, images, labels = found
            indices = records[0]
            if full:
                order = tf.range(tf.shape(indices)[0]) % tf.shape(images)[0]
                images, labels = tf.nest.map_structure(lambda x: tf.gather(x, order), (images, labels))
            missing = tf.reduce_all(indices[:, None] != present[None], axis=1)
            return indices[0], images, labels, tuple(tf.boolean_mask(part, missing) for part in records)

        def fill(expected, indices, images, labels):
            # Nothing of the end, which holds no image.
            here = tf.data.Dataset.from_tensors((indices[0], images, labels, sound))
            here = here.take(tf.shape(images, out_type="int64")[0])
            return tf.data.Dataset.range(expected, indices[0], batch_size).flat_map(again).concatenate(here)

        return batches.concatenate(end).scan(begin, follow).flat_map(fill)

    return data.window(batch_size * -(-WINDOW // batch_size)).flat_map(window)


def _broken(index, record):
    """What is told of a record that turns out to be broken."""
    return index, record["name"], record["image"]


def _blank(spec):
    """A batch with nothing in it."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda s: tf.zeros([0, *s.shape[1:]], s.dtype), spec)
