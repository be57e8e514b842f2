"""torchmetrics in a script: arguments are valid, equal metrics share states, curves are as long as there are numbers."""

import pytest
from own_scripts import estimated, measured_bytes, written

pytest.importorskip("torchmetrics")  # Lightning brings it along

TEXT = """
import torch, torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 32), torch.arange(256) % max(CLASSES, 2))
kinds = "Accuracy", "F1Score", "ConfusionMatrix", "JaccardIndex", *CURVES
task = dict(task="multiclass", num_classes=CLASSES) if CLASSES > 1 else dict(task="binary")
found = torchmetrics.MetricCollection([getattr(torchmetrics, kind)(**task) for kind in kinds]).to(device)

def evaluate():
    with torch.no_grad():
        for x, y in DataLoader(data, 64):
            out = model(x.to(device)).squeeze(1)
            found.update(PREDICTED, y.to(device))
    found.compute()
    found.reset()

evaluate()
for epoch in range(3):
    for x, y in DataLoader(data, 64, shuffle=True):
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    evaluate()
"""


@pytest.mark.parametrize(
    ("classes", "predicted", "curves"),
    [
        (5, "out.argmax(1)", ()),
        (5, "out.softmax(1)", ("AUROC", "AveragePrecision")),
        (1, "(out.sigmoid() > 0.5).int()", ()),
        (1, "out.sigmoid()", ("AUROC", "ROC")),
    ],
)
def test_a_collection_is_answered(tmp_path, capsys, classes, predicted, curves):
    text = TEXT.replace("CLASSES", str(classes)).replace("PREDICTED", predicted).replace("CURVES", str(curves))
    path = written(tmp_path, text)
    _, found, err = estimated(capsys, path, device="cpu")
    assert found is not None and "was not followed" not in err, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path), rel=0.001)
    code, _, err = estimated(capsys, path)
    assert code == 0 and "was not followed" not in err, err
