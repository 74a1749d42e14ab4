"""Plain twins of mixup and cutmix, pixel by pixel, and the cross entropy of labels that are probabilities."""

import numpy as np


def mixup(x, y, partners, kept):
    """Mix each row with its partner (Zhang et al., 2018, section 2): l x_i + (1 - l) x_p(i), and the same for y."""
    mixed = [kept * x[i] + (1 - kept) * x[partner] for i, partner in enumerate(partners)]
    labels = [kept * y[i] + (1 - kept) * y[partner] for i, partner in enumerate(partners)]
    return np.array(mixed), np.array(labels)


def cutmix(x, y, partners, kept, centre):
    """Replace a box of each image by its partner's (Yun et al., 2019, equations 1 and 2).

    The box is r_h = H sqrt(1 - l) high and r_w = W sqrt(1 - l) wide around the centre; the label's l is the fraction of
    pixels that stay.
    """
    height, width = x.shape[2:]
    half_height = int(height * (1 - kept) ** 0.5) // 2
    half_width = int(width * (1 - kept) ** 0.5) // 2
    mixed, labels = x.copy(), np.zeros(y.shape)
    for i, partner in enumerate(partners):
        n_replaced = 0
        for row in range(height):
            for column in range(width):
                in_rows = -half_height <= row - centre[0] < half_height
                if in_rows and -half_width <= column - centre[1] < half_width:
                    mixed[i, :, row, column] = x[partner, :, row, column]
                    n_replaced += 1
        fraction = n_replaced / (height * width)
        labels[i] = (1 - fraction) * y[i] + fraction * y[partner]
    return mixed, labels


def mean_cross_entropy(logits, probabilities, smoothing=0.0):
    """Return -mean_i sum_c ((1 - s) y_ic + s / C) log p_ic (Szegedy et al., 2016, section 7), and its gradient."""
    n, n_classes = logits.shape
    y = (1 - smoothing) * probabilities + smoothing / n_classes
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -(y * np.log(p)).sum() / n, (p * y.sum(1, keepdims=True) - y) / n
