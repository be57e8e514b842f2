"""What counts as a step of a script, and which model and batch are named."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written

from snugfit.profiler.profile import profile_script


def test_the_batch_that_is_named_is_the_largest_that_is_trained_on(tmp_path, capsys):
    acts = "with torch.no_grad():\n    model(torch.zeros(1, 32, device=device))\n"
    rows = LOOP.replace("x.to(device)", "x[: 16 if loss is None else 64].to(device)").replace(
        "y.to(", "y[: 16 if loss is None else 64].to("
    )
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + acts + "loss = None\n" + rows))
    assert found is not None and found["batch_shape"] == "64 x 32", err


def test_the_shape_of_what_is_given_by_name_is_told(tmp_path, capsys):
    """As trainers call models; it is known from the second step on."""
    model = "model = Named(32, width, 4).to(device)"
    text = TRAINS.replace(
        "model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 4)).to(device)", model
    )
    named = "class Named(nn.Module):\n    def __init__(self, *sizes):\n        super().__init__()\n"
    named += "        self.first, self.last = nn.Linear(*sizes[:2]), nn.Linear(*sizes[1:])\n"
    named += "    def forward(self, *, x):\n        return self.last(self.first(x))\n"
    text = text.replace("parser =", named + "parser =", 1)
    _, found, err = estimated(
        capsys, written(tmp_path, text + LOOP.replace("model(x.to(device))", "model(x=x.to(device))"))
    )
    assert found is not None, err
    assert found["batch_shape"] == "64 x 32"


BY_HAND = """
for number in range(1000):
    loss = model(torch.randn(64, 32, device=device)).square().mean()
    model.zero_grad()
    loss.backward()
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
print("went on")
"""


def test_updates_by_hand_step_with_each_backward_pass(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, TRAINS.replace("optimizer = ", "# ") + BY_HAND)
    _, estimate, err = estimated(capfd, path, "--width", "4096", device="cpu")
    assert estimate is not None, err
    assert "by hand" in err and "went on" not in err
    path = written(tmp_path, path.read_text().replace("range(1000)", "range(3)"))
    truth = measured_bytes(path, "--width", "4096")
    assert estimate["peak_allocated_bytes"] == pytest.approx(truth, rel=0.02)


def test_a_backward_pass_that_is_tried_before_the_optimizer_is_made_is_no_update_by_hand(tmp_path, capsys):
    tried = "model(torch.randn(64, 32, device=device)).sum().backward()\noptimizer = "
    _, found, err = estimated(capsys, written(tmp_path, TRAINS.replace("optimizer = ", tried) + LOOP))
    assert found is not None and "by hand" not in err


LOMO = """
class Lomo(torch.optim.Optimizer):
    def __init__(self, model):
        self.weights, self.called = list(model.parameters()), 0
        for weight in self.weights:
            weight.register_hook(self.update)
        super().__init__(self.weights, {})
    @torch.no_grad()
    def update(self, gradient=None):
        self.called += 1
        for weight in self.weights:
            if weight.grad is not None:
                weight.data.add_(weight.grad, alpha=-0.1)
                weight.grad = None
        return gradient
optimizer, second = Lomo(model), Lomo(nn.Linear(2, 2))
model.to(device)
for number in range(1000):
    model(torch.randn(64, 32, device=device)).square().mean().backward()
    optimizer.update()
    assert optimizer.called > number + 1
print("went on")
"""


def test_updates_in_hooks_of_an_optimizer_without_a_step_are_steps(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, TRAINS.replace("optimizer = ", "# ") + LOMO)
    _, estimate, err = estimated(capfd, path, "--width", "4096", device="cpu")
    assert estimate is not None and "each backward pass counts as one step" in err and "went on" not in err, err
    path = written(tmp_path, path.read_text().replace("range(1000)", "range(3)"))
    truth = profile_script(str(path), ["--width", "4096"], with_advice=False)
    assert estimate["peak_allocated_bytes"] == pytest.approx(truth.allocator_peak_bytes, rel=0.02)
    assert "An update by hand, or in hooks of a backward pass, is no step" in truth.notes[0]


def test_gathered_gradients_of_an_optimizer_are_one_step(tmp_path, capfd):
    gathers = BY_HAND.replace("model.zero_grad()", "if number % 8 == 0: optimizer.step()")
    gathers = gathers[: gathers.index("    for weight")] + "    print('pass', number)\n"
    code, _, err = estimated(capfd, written(tmp_path, TRAINS + gathers))
    assert code == 0 and "pass 23" in err, err
    assert err.index("numbers that it prints are made up") < err.index("pass 0") and err.count("made up") == 1


def test_steps_as_long_as_assumed_values_make_them(tmp_path, capsys):
    episodes = """
for length in range(1, 9):
    losses = []
    while len(losses) < length:
        scores = model(torch.randn(1, 32, device=device))
        losses.append(scores[0, scores.argmax().item()])
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
"""
    _, estimate, err = estimated(capsys, written(tmp_path, TRAINS + episodes))
    assert estimate is not None and "the steps called the model 1, 2, 3 times" in estimate["answered"][-1], err


def test_the_largest_batch_that_is_given_by_name_is_told_of_a_model_that_is_pickled_whole(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import pickle, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = torch.nn.Linear(32, 8)\n"
        "    def forward(self, features):\n"
        "        return self.body(features)\n"
        "model = Net()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for size in (16, 64, 48):\n"
        "    model(features=torch.randn(size, 32)).sum().backward()\n"
        "    optimizer.step()\n"
        "    pickle.loads(pickle.dumps(model))(features=torch.randn(80, 32)).sum().backward()\n"
    )
    _, found, err = estimated(capsys, script, device="cpu")
    assert found is not None and found["batch_shape"] == "64 x 32", err
