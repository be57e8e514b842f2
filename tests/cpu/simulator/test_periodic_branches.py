"""What a loop of a person's own does every so many steps is looked at once."""

import pytest
from own_scripts import TRAINS, estimated, measured_bytes, written

BEGINS = """
large = torch.randn(4096, 32)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1600, 32)), batch_size=64, shuffle=True)

def evaluate():
    with torch.no_grad():
        model(large.to(device))

def train(x):
    loss = model(x.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOOPS = {
    "at the end of a turn": """
for step, (x,) in enumerate(loader):
    train(x)
    if (step + 1) % 10 == 0:
        evaluate()
""",
    "at its beginning": """
for step, (x,) in enumerate(loader):
    if step % 10 == 0:
        evaluate()
    train(x)
""",
    "in a loop without a loader": """
step = 0
while step < 40:
    if step and not step % 20:
        evaluate()
    train(torch.randn(64, 32))
    step += 1
""",
    "in another method": """
class Training:
    step = 0

    def run(self):
        for (x,) in loader:
            train(x)
            self.after()

    def after(self):
        self.step += 1
        if self.step % 7 == 6:
            evaluate()

Training().run()
""",
    "by a name": """
for step, (x,) in enumerate(loader):
    train(x)
    due = (step + 1) % 10 == 0
    if due:
        evaluate()
""",
    "behind a way out": """
def evaluate_sometimes(step):
    if step % 10 != 0:
        return
    evaluate()

for step, (x,) in enumerate(loader):
    train(x)
    evaluate_sometimes(step)
""",
    "by a function's answer": """
def is_due(step):
    return step > 0 and step % 10 == 0

for step, (x,) in enumerate(loader):
    train(x)
    if is_due(step):
        evaluate()
""",
    "every other epoch": """
for epoch in range(4):
    for (x,) in loader:
        train(x)
    if epoch % 2 == 1:
        evaluate()
""",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_what_comes_every_so_many_steps_is_looked_at_once(tmp_path, capsys, loop):
    path = written(tmp_path, TRAINS + BEGINS + loop)
    _, found, err = estimated(capsys, path, device="cpu")
    assert found is not None, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=60"), abs=1024)


NOT_DUE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number % 5 == 4:
                x = x.repeat(100, 1)
        return x
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, number):
        if number % 1000 == 999:
            raise AssertionError("it has no such number")
        if number % 2000 == 1999:
            return torch.randn(3200)
        return torch.randn(32)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
limit = 10**6
for step, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=64)):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if False and step % 10 == 9:
        model(torch.randn(6400, 32))
    if step % 10 == 9:
        break
    if step % 1000 == limit:
        pass
    elif len(x) % 7 == 3:
        model(torch.randn(6400, 32))
"""


def test_models_data_and_other_tests_stay_as_they_are(tmp_path, capsys):
    path = written(tmp_path, NOT_DUE)
    _, found, err = estimated(capsys, path, device="cpu")
    assert found is not None, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=9"), abs=1024)
