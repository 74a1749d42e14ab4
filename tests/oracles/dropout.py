"""The twin of dropout's masks: one element after another, in whole numbers without a limit."""

import numpy as np

_GOLDEN = 0x9E3779B9


def kept(shape: tuple[int, ...], p: float, key: int) -> np.ndarray:
    """Return which elements stay: q(h xor (h >> 16)) >= (p - 1/2) 2^32, h = q(i G + key), q(x) = x (2 x + 1) mod 2^32.

    The shift by 16 bits is a product in float32 that is cut towards zero, as the kernel has it. The quadratic is that
    of RC6 (Rivest, Robshaw, Sidney and Yin, 1998); a mask from a counter is Salmon et al., 2011.

    Args:
        shape: shape of the mask; the element i is counted in its order.
        p: fraction that is dropped.
        key: any whole number, the same modulo 2^32.
    """
    found = []
    for index in range(int(np.prod(shape))):
        h = _signed(_quadratic(index * _GOLDEN + key))
        shifted = int(np.float32(h) * np.float32(2.0**-16))
        found.append(_signed(_quadratic(h ^ shifted)) >= round((p - 0.5) * 2**32))
    return np.array(found).reshape(shape)


def _quadratic(x: int) -> int:
    return x * (2 * x + 1)


def _signed(x: int) -> int:
    """Return the whole number of 32 bits with a sign that equals x modulo 2^32."""
    return (x + 2**31) % 2**32 - 2**31
