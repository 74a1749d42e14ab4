"""Read the batches of an epoch so that a fault names its file, and one that passes costs seconds."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from mindspore import data_sink
from mindspore.dataset import Dataset

from dimred.errors import DataError, shown

__all__ = ["Readable", "batches_after"]

_WAITS_SECONDS = (2.0, 10.0, 30.0)  # before reading is tried again
_FILE = re.compile(r"(?:data file is|open file|path): *(\S.*?\.\w{3,4})\b")
_LASTING = "decode failed"  # the file was there, and is no image
_REASON = re.compile(r"\[ERROR\] *(.*)")


def batches_after(
    make: Callable[[], "Readable"], done: int, note: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> Iterator[tuple[int, Any]]:
    """(number, batch) of an epoch, from batch ``done`` + 1 on.

    Batches that were done are read again and passed over, so that the rest is augmented as if nothing had happened.
    Where opening a file fails, as on a network disk that is gone for a moment, the epoch is made anew and read again.

    Args:
        make: gives the same epoch each time.
        done: batches that the caller has had already.
        note: is told of each failure.
        wait: seconds to sleep.

    Raises:
        DataError: reading failed again and again; names the file.
    """
    for pause in (*_WAITS_SECONDS, None):
        try:
            for number, batch in enumerate(_made(make).create_tuple_iterator(), start=1):
                if number > done:
                    yield number, batch
                    done = number
        except DataError as error:
            if pause is None or _LASTING in str(error):
                raise
            note(f"{error}; trying again in {pause:.0f} s")
            wait(pause)
        else:
            return


def _made(make: Callable[[], "Readable"]) -> "Readable":
    try:
        return make()
    except ValueError as error:  # MindSpore's word for a folder that is not there
        raise DataError(f"the data can't be read: {shown(str(error), 300)}") from None


class Readable:
    """The batches of a MindSpore dataset; a file that can't be read is named.

    Args:
        dataset: batches, all of one shape where ``sink`` is set.
        sink: on Ascend, batches come from MindSpore's queue on the device, which is filled ahead of the steps.
    """

    def __init__(self, dataset: Dataset, sink: bool = False):
        self._dataset = dataset
        self._sink = sink

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[Any]:
        """As MindSpore's.

        Raises:
            DataError: names the file that can't be read.
        """
        if self._sink:
            batches = self._from_the_device()
        else:
            batches = self._dataset.create_tuple_iterator(num_epochs=num_epochs, output_numpy=output_numpy)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise DataError(_in_words(str(error))) from None
            yield batch

    def _from_the_device(self) -> Iterator[Any]:
        take = data_sink(_batch, self._dataset)
        try:
            for _ in range(self._dataset.get_dataset_size()):
                yield take()
        finally:  # the queue would go on with the epoch after this one
            queue = self._dataset.__transfer_dataset__
            queue.stop_send()
            queue.release()


def _batch(*columns: Any) -> tuple[Any, ...]:
    return columns


def _in_words(text: str) -> str:
    reason, file = _REASON.search(text), _FILE.search(text)
    why = shown(reason[1] if reason else text, 300)
    if file is None:
        return f"the data can't be read: {why}"
    return f"{file[1]} can't be read as an image; restore it, or replace it ({why})"
