"""What else is expected of torch: bases of modules, hooks, parameters, registries, settings of the processor, loaders."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parameter import is_lazy

from snugfit import private_torch


def test_bases_of_modules():
    """BatchNorm, NormBase, InstanceNorm, ConvNd, DropoutNd"""
    from torch import nn

    for base, those, others in (
        (
            private_torch.BatchNorm,
            (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
            (nn.InstanceNorm2d,),
        ),
        (private_torch.NormBase, (nn.BatchNorm2d, nn.InstanceNorm2d), (nn.LayerNorm, nn.GroupNorm)),
        (private_torch.InstanceNorm, (nn.InstanceNorm1d, nn.InstanceNorm3d), (nn.BatchNorm2d,)),
        (private_torch.ConvNd, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d), (nn.Linear,)),
        (private_torch.DropoutNd, (nn.Dropout, nn.Dropout2d, nn.AlphaDropout), (nn.ReLU,)),
    ):
        assert all(issubclass(kind, base) for kind in those)
        assert not any(issubclass(kind, base) for kind in others)


def test_hooks_of_parameters():
    """hooks_of"""
    weight = torch.nn.Parameter(torch.ones(2))
    assert private_torch.hooks_of(weight) == ({}, {})
    weight.register_hook(lambda gradient: gradient * 3)
    weight.register_post_accumulate_grad_hook(lambda one: one.grad.add_(1))
    for table in private_torch.hooks_of(weight):
        assert len(table) == 1
        table.clear()
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1]
    weight.register_hook(lambda gradient: gradient * 2)
    weight.sum().backward()
    assert weight.grad.tolist() == [3, 3]


def test_hooks_are_seen():
    layer, hook = torch.nn.Linear(2, 2), lambda *_: None
    assert not private_torch.is_hooked(layer) and not private_torch.hooks_everywhere()
    for register in (
        layer.register_forward_hook,
        layer.register_forward_pre_hook,
        layer.register_full_backward_hook,
        layer.register_full_backward_pre_hook,
    ):
        handle = register(hook)
        assert private_torch.is_hooked(layer)
        handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    assert private_torch.hooks_everywhere() and not private_torch.is_hooked(layer)
    handle.remove()
    assert not private_torch.hooks_everywhere()
    handle = torch.nn.modules.module.register_module_forward_hook(hook, with_kwargs=True, always_call=True)
    private_torch.remove_hook(handle)
    assert not private_torch.hooks_everywhere()


def test_trees():
    """tree_map, tree_leaves"""
    assert private_torch.tree_map(lambda value: value + 1, {"a": [1, (2,)]}) == {"a": [2, (3,)]}
    assert private_torch.tree_leaves({"a": [1, (2,)], "b": 3}) == [1, 2, 3]


@pytest.mark.parametrize(
    "kind", ["Adam", "AdamW", "SGD", "Adafactor", "Muon", "RMSprop", "NAdam", "RAdam", "Rprop", "ASGD", "Adamax"]
)  # fmt: skip
def test_state_of_a_first_step(kind):
    """make_state"""
    weights = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
    weights[0].grad = torch.ones_like(weights[0])
    optimizer = getattr(torch.optim, kind)(weights)
    assert private_torch.make_state(optimizer)
    state = dict(optimizer.state.get(weights[0], {}))
    assert kind == "SGD" or any(isinstance(value, torch.Tensor) and value.dim() for value in state.values())
    assert not optimizer.state.get(weights[1]) and torch.equal(weights[0], torch.ones(2, 3))
    optimizer.step()
    assert all(optimizer.state[weights[0]][name] is value for name, value in state.items() if value is not None
               and isinstance(value, torch.Tensor))  # fmt: skip
    assert not private_torch.make_state(torch.optim.LBFGS(weights))


def test_layouts():
    """suggested_layout"""
    image = torch.empty(2, 3, 4, 4)
    assert private_torch.suggested_layout(image) is torch.contiguous_format
    assert private_torch.suggested_layout(image.to(memory_format=torch.channels_last)) is torch.channels_last


def test_resized_storages_are_seen():
    """on_storage_resize"""
    seen = []
    tensor = torch.ones(4)
    with private_torch.on_storage_resize(lambda storage: seen.append(storage.nbytes())):
        tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(16)
    assert seen == [0]


def test_parametrized_modules():
    """parametrized, plain_class, parametrize_again"""
    plain = torch.nn.Linear(2, 3)
    assert private_torch.parametrized(plain) is None
    made = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 3))
    assert private_torch.parametrized(made) == ("weight",)
    assert private_torch.plain_class(made) is torch.nn.Linear
    again = torch.nn.Linear(2, 3)
    del again.weight
    again.__dict__.update({name: value for name, value in made.__dict__.items() if name != "_forward_hooks"})
    private_torch.parametrize_again(again, ("weight",))
    assert torch.equal(again.weight, made.weight)


def test_lazy_parameters():
    """lazy_parameter"""
    lazy = private_torch.lazy_parameter(torch.nn.UninitializedParameter, torch.float16, True)
    assert is_lazy(lazy)
    assert (lazy.dtype, lazy.device.type, lazy.requires_grad) == (torch.float16, "meta", True)


def test_paths_of_registries():
    """registry_path"""
    for value, path in (
        (torch.ops, ("ops",)),
        (torch.classes, ("classes",)),
        (torch.ops.aten, ("ops", "aten")),
        (torch.ops.aten.add, ("ops", "aten", "add")),
        (torch.ops.aten.add.Tensor, ("ops", "aten", "add", "Tensor")),
        (torch, None),
        (3, None),
    ):
        assert private_torch.registry_path(value) == path


def test_compiled_modules_are_forgotten():
    """forget_compiled, compiler_memory_budget"""
    import torch._functorch.config as compiler

    with private_torch.compiler_memory_budget(0.25):
        assert compiler.activation_memory_budget == 0.25
    assert compiler.activation_memory_budget != 0.25
    module = torch.nn.Linear(2, 2)
    ran = []
    module.compile(backend=lambda graph, inputs: ran.append(1) or graph.forward)
    private_torch.forget_compiled(module)
    module(torch.ones(1, 2))
    assert not ran


def test_precision_switches():
    """rounds_to_tf32"""
    assert not private_torch.rounds_to_tf32("aten.mm.default", True)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert private_torch.rounds_to_tf32("aten.mm.default", True)
        assert not private_torch.rounds_to_tf32("aten.add.Tensor", False)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_the_line_that_asks():
    """source_line"""
    assert private_torch.source_line((str(Path(private_torch.__file__).parents[1]),)).startswith(f"{__file__}:")
    beside = compile("line()", f"{torch.__path__[0]}vision/models.py", "eval")  # no part of torch, for all its name
    assert eval(beside, {"line": lambda: private_torch.source_line((__file__,))}).endswith("torchvision/models.py:1")
    assert private_torch.source_line(("/", str(Path(sys.prefix)))) == ""


def test_the_processor():
    """processor_settings, processor_capability"""
    settings = private_torch.processor_settings()
    assert all("=" in one for one in settings)
    assert private_torch.processor_settings() == settings
    torch.use_deterministic_algorithms(True)
    try:
        assert private_torch.processor_settings() != settings
    finally:
        torch.use_deterministic_algorithms(False)
    assert private_torch.processor_capability()


def test_a_loader_reads_other_samples():
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=4)
    batches = iter(loader)
    private_torch.give_numbers(batches, lambda numbers: [9 - number for number in numbers])
    assert [batch.tolist() for batch in batches] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]


def test_a_graph_may_be_empty():
    """empty_graph"""
    graph = private_torch.empty_graph()
    assert not list(graph.nodes()) and not list(graph.inputs())
