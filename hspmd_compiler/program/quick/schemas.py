"""How the operators that have a rule take their arguments, as PyTorch's schemas say it."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TYPES = {"Tensor": "Tensor", "Tensor?": "Optional[Tensor]", "Tensor[]": "List[Tensor]"}
"""As torch spells the types of tensors; no other is asked for."""

_TAKE: Mapping[str, str] = {
    "Tensor self, int dim, bool half_to_float": "_log_softmax.default _softmax.default",
    "Tensor grad_output, Tensor output, int dim, ScalarType input_dtype": """
        _log_softmax_backward_data.default
    """,
    (
        "Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, "
        "Tensor? attn_mask=None, float? scale=None"
    ): "_scaled_dot_product_flash_attention_for_cpu.default",
    (
        "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
        "float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None"
    ): "_scaled_dot_product_flash_attention_for_cpu_backward.default",
    (
        "Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
        "bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None"
    ): "_to_copy.default",
    "Tensor self, SymInt[] size": "_unsafe_view.default view.default",
    "Tensor self": """
        abs.default alias.default bitwise_not.default cos.default detach.default erf.default
        exp.default log.default neg.default reciprocal.default relu.default rsqrt.default
        sigmoid.default silu.default sin.default sqrt.default t.default tanh.default
    """,
    "Tensor self, Scalar other, Scalar alpha=1": "add.Scalar sub.Scalar",
    "Tensor self, Tensor other, *, Scalar alpha=1": "add.Tensor sub.Tensor",
    "Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1": "addmm.default",
    "Tensor self, int[1] dim=[], bool keepdim=False": "amax.default",
    (
        "Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
        "bool? pin_memory=None"
    ): "arange.default",
    "Tensor self, Tensor other": """
        bitwise_and.Tensor bitwise_or.Tensor div.Tensor eq.Tensor ge.Tensor gt.Tensor le.Tensor
        lt.Tensor mul.Tensor ne.Tensor
    """,
    "Tensor self, Tensor mat2": "bmm.default mm.default",
    "Tensor[] tensors, int dim=0": "cat.default",
    "Tensor self, *, MemoryFormat? memory_format=None": "clone.default",
    "Tensor self, SymInt[] pad, Scalar value=0": "constant_pad_nd.default",
    "Tensor self, Scalar other": """
        div.Scalar eq.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar mul.Scalar ne.Scalar
    """,
    (
        "Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
        "bool sparse=False"
    ): "embedding.default",
    (
        "Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq"
    ): "embedding_dense_backward.default",
    (
        "Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
        "bool? pin_memory=None, MemoryFormat? memory_format=None"
    ): "ones_like.default zeros_like.default",
    "Tensor self, SymInt[] size, *, bool implicit=False": "expand.default",
    "Tensor self, int dim, Tensor index, *, bool sparse_grad=False": "gather.default",
    "Tensor self, Tensor mask, Scalar value": "masked_fill.Scalar",
    "Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None": "mean.dim sum.dim_IntList",
    "Tensor self, int[] dims": "permute.default",
    "Tensor self, Scalar exponent": "pow.Tensor_Scalar",
    "Tensor self, SymInt[] shape": "reshape.default",
    "Tensor self, int dim, SymInt index": "select.int",
    "Tensor grad_output, Tensor self": "silu_backward.default",
    "Tensor grad_output, Tensor output": "tanh_backward.default",
    "Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps": """
        native_layer_norm.default
    """,
    (
        "Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, "
        "Tensor? weight, Tensor? bias, bool[3] output_mask"
    ): "native_layer_norm_backward.default",
    "Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1": "slice.Tensor",
    "Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step": """
        slice_backward.default
    """,
    "Tensor self, *, ScalarType? dtype=None": "sum.default",
    "Tensor self, int dim0, int dim1": "transpose.int",
    "Tensor self, int dim": "unsqueeze.default",
    "Tensor condition, Tensor self, Tensor other": "where.self",
}
"""Arguments, and the operators that take them."""


@dataclass(frozen=True, slots=True)
class SchemaArgument:
    """As torch's own has it."""

    name: str
    type: str
    kwarg_only: bool
    default_value: object


def _arguments(text: str) -> Iterator[SchemaArgument]:
    keyword = False
    for part in text.split(", "):
        if part == "*":
            keyword = True
            continue
        kind, _, rest = part.partition(" ")
        name, _, default = rest.partition("=")
        yield SchemaArgument(name, TYPES.get(kind, kind), keyword, _value(default))


def _value(text: str) -> object:
    try:
        return literal_eval(text) if text else None
    except (SyntaxError, ValueError):
        return text


SCHEMAS: Mapping[str, tuple[SchemaArgument, ...]] = {
    f"aten.{name}": found
    for text, names in _TAKE.items()
    for found in (tuple(_arguments(text)),)
    for name in names.split()
}
"""By operator."""
