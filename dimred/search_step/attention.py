"""Attention whose dropout masks can be drawn again; MindSpore's attention draws them inside a function."""

import copy

from mindspore import Tensor, nn, ops


class ReplayableAttention(nn.Cell):
    """``nn.MultiheadAttention`` with another dropout for the attention weights; arguments and results are the same.

        softmax(Q K' / sqrt(d)) -> dropout -> times (V W' + b) -> output projection

    The attention computes its weights without dropout, for each head; what follows is computed here. Outside training
    it computes everything.

    Args:
        attention: the attention; it is not changed. Its parameters are used under their own names.
        dropout: drops attention weights, (n, heads, queries, keys).
    """

    def __init__(self, attention: nn.MultiheadAttention, dropout: nn.Cell):
        super().__init__(auto_prefix=False)
        self.attention = copy.copy(attention)
        # A copied cell shares its attribute dictionary with the original, which would lose its dropout.
        object.__setattr__(self.attention, "__dict__", {**attention.__dict__, "dropout": 0.0})
        self.dropout = dropout
        self.add_flags_recursive(training=attention.training)

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
    ) -> tuple[Tensor, ...]:
        attention = self.attention
        if not self.training:
            return attention(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights)
        _, weights = attention(query, key, value, key_padding_mask, True, attn_mask, False)
        weights = self.dropout(weights)
        values = self._values(value)
        heads = values.reshape((*values.shape[:-1], attention.num_heads, attention.head_dim))
        if value.ndim == 2:  # a single sample
            mixed = ops.matmul(weights, heads.permute(1, 0, 2)).permute(1, 0, 2)
        elif attention.batch_first:
            mixed = ops.matmul(weights, heads.permute(1, 2, 0, 3)).permute(0, 2, 1, 3)
        else:
            mixed = ops.matmul(weights, heads.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)
        output = attention.out_proj(mixed.reshape((*mixed.shape[:-2], attention.embed_dim)))
        if not need_weights:
            return (output,)
        if average_attn_weights:
            weights = weights.mean(-3)
        return output, weights

    def _values(self, value: Tensor) -> Tensor:
        """Return V W' + b for all keys, (keys, n, embed_dim), or (keys, embed_dim) for a single sample."""
        attention = self.attention
        n_outputs = attention.embed_dim
        if attention.batch_first and value.ndim == 3:
            value = value.swapaxes(0, 1)
        if attention.in_proj_weight is None:
            weight = attention.v_proj_weight
        else:
            weight = attention.in_proj_weight[2 * n_outputs :]
        values = ops.matmul(value, weight.T)
        if attention.in_proj_bias is not None:
            values = values + attention.in_proj_bias[2 * n_outputs :]
        one_key = (1, *values.shape[1:])
        if attention.bias_v is not None:
            values = ops.cat([values, ops.broadcast_to(attention.bias_v.reshape(n_outputs), one_key)])
        if attention.add_zero_attn:
            values = ops.cat([values, ops.zeros(one_key, values.dtype)])
        return values
