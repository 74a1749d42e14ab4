"""Plain NumPy twins of a training step's parts, in float64, written from the equations and not from the code."""

import numpy as np


def clip(gradients, norm):
    """Scale all gradients as one vector to a length of at most ``norm`` (Pascanu et al., 2013, algorithm 1).

    Returns:
        The scaled gradients, and the length before.
    """
    before = np.sqrt(sum((g**2).sum() for g in gradients))
    if before > norm:
        gradients = [g * norm / before for g in gradients]
    return gradients, before


def ema(values, decay=None, ramp=False, half_life=None):
    """Return sum_s (1 - d_s) prod_{r > s} d_r value_s, the average's recursion solved.

    Args:
        values: the values at the updates s = 1, 2, ...
        decay, ramp: d_s is ``decay``, with the ramp times 1 - exp(-s / 2000), and 0 for s = 1.
        half_life: in place of ``decay``, d_s is 2^(-1 / (half_life s)), and 0 for s = 1.
    """
    steps = np.arange(1, len(values) + 1)
    if half_life is not None:
        decays = 2.0 ** (-1 / (half_life * steps))
    else:
        decays = decay * (1 - np.exp(-steps / 2000)) if ramp else np.full(len(values), decay)
    decays[0] = 0
    total = 0.0
    for index, value in enumerate(values):
        total = total + (1 - decays[index]) * np.prod(decays[index + 1 :]) * value
    return total


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


class Optimizer:
    """One update rule over a list of arrays, each with its own weight decay; the rules cite their equations below."""

    def __init__(self, name, decays, rates, momentum=None, nesterov=False, beta1=0.9, beta2=0.999, eps=1e-8, beta=0.9):
        self.name, self.decays, self.rates = name, decays, rates
        self.momentum = {"momentum": 0.9, "sgd": 0.0}.get(name, 0.0) if momentum is None else momentum
        self.nesterov, self.beta1, self.beta2, self.eps, self.beta = nesterov, beta1, beta2, eps, beta
        self.first = [0.0] * len(decays)
        self.second = [0.0] * len(decays)
        self.t = 0

    def step(self, weights, gradients):
        rate = self._rate(self.t)
        self.t += 1
        return [
            self._one(i, w, g, self.decays[i], rate) for i, (w, g) in enumerate(zip(weights, gradients, strict=True))
        ]

    def _rate(self, t):
        return self.rates[min(t, len(self.rates) - 1)]

    def _one(self, i, w, g, decay, rate):
        if self.name == "schedule_free":
            return self._schedule_free(i, w, g, decay)
        if self.name in ("momentum", "sgd"):  # Sutskever et al. (2013), with L2 decay in the gradient
            g = g + decay * w
            self.first[i] = self.momentum * self.first[i] + g
            return w - rate * (g + self.momentum * self.first[i] if self.nesterov else self.first[i])
        self.first[i] = self.beta1 * self.first[i] + (1 - self.beta1) * g
        self.second[i] = self.beta2 * self.second[i] + (1 - self.beta2) * g**2
        m = self.first[i] / (1 - self.beta1**self.t)  # Loshchilov & Hutter (2019), algorithm 2, lines 9, 10 and 12
        v = self.second[i] / (1 - self.beta2**self.t)
        return w - rate * (m / (np.sqrt(v) + self.eps) + decay * w)

    def _schedule_free(self, i, w, g, decay):
        """Follow Defazio et al. (2024), algorithm 1: compute z and x from all rates and gradients so far."""
        if self.t == 1:
            self.first[i] = [w]  # z_1, z_2, ...
        self.first[i].append(self.first[i][-1] - self._rate(self.t - 1) * (g + decay * w))
        shares = np.array([self._rate(t) ** 2 for t in range(self.t)])
        x = sum(share * z for share, z in zip(shares / shares.sum(), self.first[i][1:], strict=True))
        return (1 - self.beta) * self.first[i][-1] + self.beta * x


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
