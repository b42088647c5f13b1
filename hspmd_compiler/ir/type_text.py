"""Short names of torch types and shapes: `f32[64,128]`."""

from __future__ import annotations

import torch

SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's own name without `torch.`."""
    return str(dtype).removeprefix("torch.")


def type_text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """`f32[64,128]`; a scalar is `f32[]`."""
    name = dtype_name(dtype)
    return f"{SHORT.get(name, name)}[{','.join(map(str, shape))}]"
