"""torch's private tracing calls still give what we rely on: the operator set of each model, and the marks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.ir.printer import operator_text
from hspmd_compiler.trace import capture
from hspmd_compiler.trace.loss_output import loss_of
from hspmd_compiler.trace.state.held_state import ReachableState

Made = tuple[nn.Module, dict[str, torch.Tensor]]

COMMON = "_log_softmax _log_softmax_backward_data detach mm nll_loss_backward nll_loss_forward t getitem"
ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_unsafe_view add.Tensor arange bitwise_and.Tensor cat clone constant_pad_nd cumsum embedding "
    "embedding_dense_backward eq.Tensor expand index.Tensor le.Tensor mul.Tensor ne.Scalar new_ones "
    "pow.Tensor_Scalar scalar_tensor slice.Tensor sub.Tensor transpose.int unsqueeze view where.self "
    "mul.Scalar sum.dim_IntList"
)
OPERATORS = {
    "mlp": f"{COMMON} addmm relu sum.dim_IntList threshold_backward view",
    "gpt2": f"{COMMON} {ATTENTION} addmm alias native_layer_norm native_layer_norm_backward split.Tensor "
    "tanh tanh_backward",
    "llama": f"{COMMON} {ATTENTION} _to_copy alias cos div.Scalar mean.dim neg rsqrt silu silu_backward sin "
    "slice_backward squeeze.dim",
}


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators(name: str, graphs: dict[str, LogicalGraph]) -> None:
    found = {operator_text(row.op) for row in graphs[name].rows if row.op != "placeholder"}
    wanted = set(OPERATORS[name].split())
    assert (sorted(found - wanted), sorted(wanted - found)) == ([], [])


def test_nodes_carry_module_phase_number_and_place(mlp: Made) -> None:
    model, batch = mlp
    mode = capture.new_fake_mode()
    with mode:
        inputs = {name: torch.empty_like(tensor, device="cpu") for name, tensor in batch.items()}
    fake = capture.fake_copy(model, mode)
    joint = capture.capture_joint(fake, inputs, mode, loss_of, ReachableState(fake))
    nodes = [n for n in joint.graph.nodes if n.op == "call_function"]
    assert all(capture.stack_trace(n) for n in nodes)
    assert all(capture.sequence_number(n) is not None for n in nodes)
    paths = {capture.module_path(n) for n in nodes if capture.is_backward(n)}
    assert paths == {"net.0", "net.1", "net.2", "net.3", "net.4", ""}
    assert {o.name for o in joint.origins if o.name} == {n for n, _ in model.named_parameters()} | {"x", "y"}
    grads = [role.name for role in joint.roles if role and role.kind is capture.JointOutputKind.GRAD]
    assert grads == [name for name, _ in model.named_parameters()]


def test_torch_is_left_as_it_was() -> None:
    own = torch.nn.init._no_grad_trunc_normal_, torch.utils.swap_tensors
    with capture.building_fakes(lambda *args: args[0]):
        assert torch.nn.init._no_grad_trunc_normal_ is not own[0]
        assert torch.utils.swap_tensors is not own[1]
    assert (torch.nn.init._no_grad_trunc_normal_, torch.utils.swap_tensors) == own
