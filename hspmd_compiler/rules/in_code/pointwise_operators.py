"""Names of pointwise operators, by what they do to pending sums."""

from __future__ import annotations

LINEAR = (
    "aten.neg.default",
    "aten._conj_physical.default",
    "aten.conj_physical.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten._to_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.mul.Scalar",
    "aten.div.Scalar",
)
MOVES = (
    "aten.detach.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
)
LAZY = {
    "aten._conj.default": "aten.conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
}
"""Linear operators that only mark a tensor, and what computes it: a mark is lost where pieces move."""
SUMS = ("aten.add.Tensor", "aten.sub.Tensor")
PRODUCTS = ("aten.mul.Tensor", "aten.div.Tensor")
_SETTLING = """
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar rsqrt.default sqrt.default exp.default log.default
    abs.default silu.default silu_backward.default gelu.default gelu_backward.default relu.default
    tanh.default tanh_backward.default sigmoid.default sigmoid_backward.default threshold_backward.default
    hardtanh.default hardtanh_backward.default leaky_relu.default leaky_relu_backward.default elu.default
    elu_backward.default softplus.default softplus_backward.default sin.default cos.default erf.default
    reciprocal.default sign.default sgn.default square.default log1p.default expm1.default where.self
    where.ScalarSelf where.ScalarOther masked_fill.Scalar masked_fill.Tensor le.Tensor lt.Tensor ge.Tensor
    gt.Tensor eq.Tensor ne.Tensor le.Scalar lt.Scalar ge.Scalar gt.Scalar eq.Scalar ne.Scalar
    bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default logical_and.default logical_or.default
    logical_not.default floor_divide.default remainder.Scalar add.Scalar sub.Scalar rsub.Scalar
    clamp.default clamp_min.default clamp_max.default maximum.default minimum.default hardswish.default
    hardswish_backward.default hardsigmoid.default hardsigmoid_backward.default mish.default
    mish_backward.default logical_xor.default floor.default ceil.default round.default isnan.default
    fmod.Scalar softshrink.default hardshrink.default atan.default asin.default acos.default sinh.default
    cosh.default tan.default log2.default log10.default exp2.default
    xlogy.Tensor copy.default fill.Tensor complex.default
"""
CHOICES: dict[str, int | None] = {
    "aten.where.self": 0,
    "aten.where.ScalarSelf": 0,
    "aten.where.ScalarOther": 0,
    "aten.masked_fill.Scalar": 1,
    "aten.masked_fill.Tensor": 1,
    "aten.copy.default": None,
}
"""Where the condition stands among the operands."""
SETTLING = tuple(f"aten.{name}" for name in _SETTLING.split())
