"""Plain NumPy twins of a training step's parts, in float64, written from the equations and not from the code."""

import numpy as np


class LossScaleTwin:
    """The dynamic loss scale of Micikevicius et al. (2018), section 3.2, with bounds."""

    def __init__(self, scale, factor, window, smallest, largest):
        self.scale, self.factor, self.window = scale, factor, window
        self.smallest, self.largest = smallest, largest
        self.good = self.overflows = 0

    def step(self, finite):
        if not finite:
            self.overflows, self.good = self.overflows + 1, 0
            self.scale = max(self.scale / self.factor, self.smallest)
            return
        self.good += 1
        if self.good == self.window:
            self.scale, self.good = min(self.scale * self.factor, self.largest), 0


def rates(name, peak, warmup, total, milestones=(), factor=0.1):
    """Compute what ``make_rates`` of ``dimred.train_step.schedule`` returns, from the definitions, step by step."""
    found = []
    for i in range(total):
        x = (i - warmup) / (total - warmup)
        if i < warmup:
            found.append(peak * (i + 1) / warmup)
        elif name == "linear":
            found.append(peak * (1 - x))
        elif name == "cosine":
            found.append(peak * 0.5 * (1 + np.cos(np.pi * x)))
        elif name == "1-sqrt":
            found.append(peak * (1 - x**0.5))
        elif name == "step":
            found.append(peak * factor ** sum(i >= m for m in milestones))
        else:
            found.append(peak)
    return np.array(found)


def cross_entropy(weights, x, labels, ignored=-100, class_weights=None, smoothing=0.0):
    """Return mean cross entropy of the logits x W' over the labels that count, its gradient by W, and their count.

    f = sum_i a_i' (-log p_i) / sum_i c(y_i),   a_i = (1 - s) c(y_i) e(y_i) + s c / C   (MindSpore's ``nll_loss``)

    with class weights c, the unit vector e(y) of class y, smoothing s, C classes, p_i the softmax of the logits, and
    the sums over the labels y_i that are not ignored. W is (C, d), x (n, d, ...), labels (n, ...).
    """
    n_classes, n_features = weights.shape
    x, labels = np.moveaxis(x, 1, -1).reshape(-1, n_features)[labels.ravel() != ignored], labels[labels != ignored]
    c = np.ones(n_classes) if class_weights is None else class_weights
    logits = x @ weights.T
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    a = (1 - smoothing) * np.eye(n_classes)[labels] * c[labels, None] + smoothing * c / n_classes
    count = c[labels].sum()
    return (-a * log_p).sum() / count, (np.exp(log_p) * a.sum(1, keepdims=True) - a).T @ x / count, count
