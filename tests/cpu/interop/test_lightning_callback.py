"""The callback in Lightning's Trainer: predicted beside measured, and the alarm."""

import pytest
import torch
from torch import nn

from snugfit.errors import SnugfitWarning

pytest.importorskip("lightning", reason="lightning is not installed (pip install lightning)")

import lightning

from snugfit.interop.lightning import MemoryCallback


class Classifier(lightning.LightningModule):
    def __init__(self, leaks=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 10))
        self.kept = [] if leaks else None

    def loss(self, batch):
        rows, labels = batch
        return nn.functional.cross_entropy(self.net(rows), labels)

    def training_step(self, batch, number):
        if self.kept is not None:
            self.kept.append(self.net[0](batch[0]))
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("validation", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def fit(callback, model, **settings):
    data = torch.utils.data.TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], **settings,
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(data, batch_size=size, shuffle=size < 256) for size in (64, 256)]
    trainer.fit(model, *loaders)
    return callback.report


def test_a_fit_takes_what_is_predicted():
    settings = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    report = fit(MemoryCallback(budget="1GiB"), Classifier(), **settings)
    assert report.predicted_bytes == pytest.approx(report.measured_bytes, rel=0.03)
    assert report.steps == 16 and report.evaluation_bytes > 0 and report.leak is None


def test_a_leak_in_a_fit_is_named():
    callback = MemoryCallback(predict=False)
    with pytest.warns(SnugfitWarning, match="memory grows step by step"):
        report = fit(callback, Classifier(leaks=True))
    assert report.leak.rows[0].module == "net.0"
    assert __file__ in report.leak.rows[0].line
    assert "kept" in report.leak.holder
