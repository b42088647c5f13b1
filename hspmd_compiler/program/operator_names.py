"""The operators that a program may call, by name: what the rules emit, and what is computed whole.

Off the list are operators that read memory by strides or addresses that an artifact gives, that leave memory
as it is, draw random numbers, read files, or are made for another kind of tensor (sparse, nested, quantised).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import InternalError

if TYPE_CHECKING:
    import torch

ATEN_NAME = re.compile(r"aten\.([a-z0-9_]+)\.([A-Za-z0-9_]+)")

_FILLS = """
    arange eye fill full full_like linspace logspace new_full new_ones new_zeros ones ones_like range
    scalar_tensor tril_indices triu_indices zero zeros zeros_like bartlett_window blackman_window
    hamming_window hann_window kaiser_window
"""
_VIEWS = """
    _conj _neg_view _unsafe_view alias cat channel_shuffle chunk clone contiguous
    constant_pad_nd copy detach diag_embed
    diagonal diagonal_backward diagonal_scatter expand flip lift lift_fresh lift_fresh_copy permute
    pixel_shuffle pixel_unshuffle repeat reshape roll rot90 select select_backward select_scatter slice
    slice_backward slice_inverse slice_scatter split split_with_sizes squeeze stack t transpose tril triu
    narrow unbind unfold unfold_backward unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view
    view_as_complex view_as_real _to_copy _conj_physical
    block_diag reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
    reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
    replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward
"""
_ELEMENTWISE = """
    __lshift__ __rshift__ _prelu_kernel _prelu_kernel_backward abs acos acosh add addcdiv addcmul angle
    asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor ceil celu clamp clamp_max clamp_min complex conj_physical
    copysign cos cosh deg2rad digamma div elu
    elu_backward eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp gcd ge gelu
    gelu_backward glu glu_backward gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward
    hardswish hardswish_backward hardtanh hardtanh_backward heaviside hypot i0 igamma igammac isinf isnan
    isneginf isposinf lcm ldexp le leaky_relu leaky_relu_backward lerp lgamma log log10 log1p log2
    log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor logit logit_backward lt masked_fill maximum minimum mish mish_backward mul mvlgamma
    nan_to_num ne neg nextafter polar polygamma pow rad2deg reciprocal relu remainder round
    rrelu_with_noise_backward rsqrt rsub sgn
    sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus softplus_backward
    softshrink softshrink_backward special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
    special_ndtri special_xlog1py special_zeta sqrt square sub tan tanh tanh_backward threshold
    threshold_backward trunc where xlogy native_dropout_backward
"""
_REDUCTIONS = """
    _aminmax _is_all_true _is_any_true _logcumsumexp _log_softmax _log_softmax_backward_data _safe_softmax
    _softmax _softmax_backward_data all amax amin aminmax any argmax argmin argsort count_nonzero cummax
    cummin cumprod cumsum dist hash_tensor histc kthvalue linalg_vector_norm logcumsumexp logsumexp max
    mean median min mode nanmedian nansum norm prod renorm sort std std_mean sum topk trace
    unique_consecutive unique_dim unique_dim_consecutive _unique _unique2 var var_mean
"""
_LOOKUPS = """
    _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate bincount bucketize embedding embedding_dense_backward gather index
    index_add index_copy index_fill index_put index_reduce index_select isin masked_scatter
    masked_scatter_backward masked_select nonzero nonzero_static put repeat_interleave scatter scatter_add
    scatter_reduce searchsorted take
"""
_LOSSES = """
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss
    huber_loss_backward mse_loss mse_loss_backward multi_margin_loss multi_margin_loss_backward
    multilabel_margin_loss_backward multilabel_margin_loss_forward nll_loss2d_backward nll_loss2d_forward
    nll_loss_backward nll_loss_forward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward _ctc_loss _ctc_loss_backward
"""
_PRODUCTS = """
    _addmm_activation _cdist_backward _cdist_forward _euclidean_dist _grouped_mm _int_mm _pdist_backward
    _pdist_forward _trilinear addbmm addmm addmv addr baddbmm bmm dot linear_backward matmul_backward mm mv
    vdot _weight_norm_interface _weight_norm_interface_backward linalg_cross
"""
_NORMS = """
    _batch_norm_no_update _batch_norm_with_update_functional _fused_rms_norm _fused_rms_norm_backward
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    batch_norm_backward native_batch_norm native_batch_norm_backward native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward
"""
_ATTENTION = """
    _masked_softmax _masked_softmax_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward
"""
_IMAGES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
    _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
    _upsample_nearest_exact3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
    adaptive_max_pool3d_backward affine_grid_generator avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward col2im conv_tbc convolution convolution_backward grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward im2col max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d
    max_unpool3d upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
    upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
"""
_ALGEBRA = """
    _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex
    _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig
    linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu
    linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular
    lu_unpack ormqr triangular_solve
"""

_GROUPS = (
    (_FILLS, _VIEWS, _ELEMENTWISE, _REDUCTIONS, _LOOKUPS, _LOSSES, _PRODUCTS),
    (_NORMS, _ATTENTION, _IMAGES, _ALGEBRA),
)
NAMES = frozenset(name for groups in _GROUPS for names in groups for name in names.split())


def is_listed(op: str) -> bool:
    """Whether `aten.<name>.<overload>` has a name of the list."""
    match = ATEN_NAME.fullmatch(op)
    return match is not None and match[1] in NAMES


def torch_operator(op: str) -> torch._ops.OpOverload | None:
    """The operator that torch holds as `<namespace>.<name>.<overload>`; None where there is none.

    The one way from a name to an operator: it imports nothing, and doesn't ask whether a program may call it.
    """
    import torch  # late: names are read without

    namespace, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    found = getattr(packet, overload, None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
    return found if isinstance(found, torch._ops.OpOverload) else None


def known_operator(op: str) -> torch._ops.OpOverload:
    """The operator of a traced row, which torch holds."""
    import torch

    found = torch_operator(op)
    if found is None:
        raise InternalError(f"PyTorch {torch.__version__} has no operator {op}")
    return found
