"""Which casts are of a layer's weight: autocast makes them in front of the product that the weight is for."""

import numpy as np

from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Trace

_LAYERS = r"^aten::(linear|addmm|matmul|conv\d?d?|convolution|conv_transpose\dd)$"


def of_weights(trace: Trace, casts: Ints) -> Ints:
    """Return those of the casts that are of a weight: it has the shape of an input of the layer, but not its first."""
    layer = trace.tree.nearest(casts, trace.matching(_LAYERS, Kind.OP))
    rows, layer = casts[layer >= 0], layer[layer >= 0]
    # with more dimensions, the factors of attention: both are activations
    batched = trace.named("aten::matmul")[layer] & where_inputs(trace, layer, lambda each: len(each.shape(1)) != 2)
    rows, layer = rows[~batched], layer[~batched]
    if not len(rows):
        return rows
    own, which = inputs_of(trace, rows)
    of_layer, layer_is = inputs_of(trace, layer)
    pairs, inverse = np.unique(np.stack([which, layer_is], axis=1), axis=0, return_inverse=True)
    is_weight = np.array([_is_weight(own[cast].shape(0), of_layer[item]) for cast, item in pairs.tolist()], dtype=bool)
    return rows[is_weight[inverse.reshape(-1)]]


def share_of_layers(trace: Trace, among: Mask) -> float:
    """Return in how many of the layers something is cast, without shapes: there, only autocast does that."""
    layers = trace.matching(_LAYERS, Kind.OP) & among
    # autocast calls the layer again, with what it has cast
    layers &= ~trace.tree.under(layers)
    cast = trace.tree.above(trace.named("aten::_to_copy"))
    return float(cast[layers].mean()) if layers.any() else 0.0


def _is_weight(shape: list[int], layer: Inputs) -> bool:
    others = [layer.shape(index) for index in range(1, 3)]
    return bool(shape) and shape in others and shape != layer.shape(0)
