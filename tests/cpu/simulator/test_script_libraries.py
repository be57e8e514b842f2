"""Scripts that train by a library's loop, unchanged: predicted on cpu, and taken through the same steps for real."""

import json
from pathlib import Path

import pytest
from command_line import run_command

ROOT = Path(__file__).parents[3]
ACCELERATE = """
import torch
from torch import nn
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, num_workers=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(20):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("states")
"""
TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, number):
        ids = torch.arange(64) % 100
        return {"input_ids": ids, "attention_mask": torch.ones(64, dtype=torch.long), "labels": number % 2}

sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 100}
model = BertForSequenceClassification(BertConfig(**sizes))
each = {"eval_strategy": "epoch", "save_strategy": "epoch"}
arguments = TrainingArguments("out", per_device_train_batch_size=16, report_to=[], **each)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts())
trainer.train()
"""
IMAGES = """
import numpy
import torch
from PIL import Image
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2
device = "cuda" if torch.cuda.is_available() else "cpu"
read = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(48), v2.ToDtype(torch.float32, scale=True)])
flip = v2.RandomHorizontalFlip()

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, number):
        image = read(Image.fromarray(numpy.zeros((64, 64, 3), numpy.uint8)))
        return flip(image, tv_tensors.Mask(torch.randint(0, 4, (48, 48))))

model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(Images(), batch_size=16):
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""Images and masks are tensors of torchvision's own classes: real ones as they are read, simulated ones on the card."""
DECODER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 64}
model = LlamaForCausalLM(LlamaConfig(**sizes))
words = [{"input_ids": (ids := torch.randint(64, (256,))), "labels": ids} for _ in range(640)]
arguments = TrainingArguments("out", per_device_train_batch_size=16, report_to=[], save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=words).train()
"""


def document(words, folder):
    """The JSON document of a command."""
    done = run_command(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_it_runs(folder, *real):
    """The estimate of `train.py` on cpu, whose peak is that of a real run; `real`: what is profiled, and how long."""
    found = document(["estimate", "--device", "cpu", "--json", "train.py"], folder)
    measured = document(["profile", "--json", "--no-advice", *real], folder)
    assert found["peak_allocated_bytes"] == pytest.approx(measured["allocator_peak_bytes"], rel=0.005)
    return found


@pytest.mark.parametrize(("library", "script"), [("accelerate", ACCELERATE), ("transformers", TRAINER)])
def test_a_library_s_loop_takes_what_is_predicted(library, script, tmp_path):
    pytest.importorskip(library)
    (tmp_path / "train.py").write_text(script)
    as_it_runs(tmp_path, "--steps", "1000", str(ROOT / "benchmarks" / "real_script.py"), "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_tensors_of_a_library_s_class_are_simulated(tmp_path):
    (tmp_path / "train.py").write_text(IMAGES)
    as_it_runs(tmp_path, "--steps", "1000", "train.py")
    on_card = document(["estimate", "--device", "rtx-4090", "--json", "train.py"], tmp_path)
    assert on_card["batch_shape"] == "16 x 3 x 48 x 48"
    assert on_card["anatomy_bytes"]["activations"] > 16 * 32 * 48 * 48 * 4


def test_what_a_script_imports_is_told_what_it_cannot_see(tmp_path):
    """A mask that only fake tensors need would be a fifth of the peak."""
    (tmp_path / "train.py").write_text(DECODER)
    found = document(["estimate", "--device", "rtx-4090", "--json", "train.py"], tmp_path)
    assert "transformers was told that no row of a batch packs several sequences" in found["answered"]
    assert not [row for row in found["sources"] if "masking_utils" in row["line"] and row["most_bytes"] > 100_000]


KEEPS = """
import torch
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, number):
        return {"input_ids": torch.ones(64, dtype=torch.long), "labels": torch.ones(64, dtype=torch.long)}

sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 100}
model = BertForTokenClassification(BertConfig(**sizes, num_labels=50))
arguments = TrainingArguments("out", eval_strategy="steps", eval_steps=50, report_to=[])
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts(), compute_metrics=lambda _: {})
trainer.train()
"""


def test_a_trainer_that_keeps_what_it_predicts_is_told(tmp_path):
    """Behind an epoch whose loader has asked for one batch ahead."""
    (tmp_path / "train.py").write_text(KEEPS)
    done = run_command("estimate", "--device", "rtx-4090", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a pass through 100 batches keeps" in done.stderr and "eval_accumulation_steps" in done.stderr


LIGHTNING = """
import lightning, torch
from torch import nn

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, number):
        return self.net(batch[0]).mean()

    def validation_step(self, batch, number):
        return self.net(batch[0].repeat(64, 1)).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

data = torch.utils.data.TensorDataset(torch.randn(640, 64))
loaders = [torch.utils.data.DataLoader(data, batch_size=64) for _ in range(2)]
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
lightning.Trainer(max_epochs=2, **quiet).fit(Model(), *loaders)
"""


def test_lightning_s_processes_are_estimated(tmp_path):
    """It makes its loaders anew, with a sampler for each process, and moves the model to the host behind the training."""
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(LIGHTNING.replace("max_epochs=2", 'max_epochs=2, devices=2, strategy="ddp"'))
    done = run_command("estimate", "--gpus", "2", "--device", "rtx-4090", "--json", "train.py", cwd=tmp_path)
    assert done.returncode == 0 and "failed" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["gpus"] == 2
    alone = run_command("estimate", "--device", "rtx-4090", "train.py", cwd=tmp_path)
    assert alone.returncode == 2 and "--gpus 2" in alone.stderr, alone.stderr


def test_lightning_s_validation_behind_an_epoch_is_seen(tmp_path):
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(LIGHTNING)
    as_it_runs(tmp_path, "--steps", "1000", "train.py")


TORCHAO = """
import torch
from torch import nn
from torchao.optim import AdamW8bit
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
optimizer = AdamW8bit(model.parameters())
for _ in range(4):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_state_that_is_made_of_other_tensors_is_state(tmp_path):
    """Codes of torchao, a byte for each number, with a few scales; they were counted as temporaries."""
    pytest.importorskip("torchao")
    (tmp_path / "train.py").write_text(TORCHAO)
    found = document(["estimate", "--device", "cpu", "--json", "train.py"], tmp_path)
    measured = document(["profile", "--json", "--no-advice", "train.py"], tmp_path)
    for one in (found, measured):
        assert one["anatomy_bytes"]["optimizer_state"] == pytest.approx(2 * 2 * 64 * 1024, rel=0.1)


INTEGERS = """
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

class Side(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.frozen, self.down, self.up = frozen, nn.Linear(2048, 8, bias=False), nn.Linear(8, 2048, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))

device = "cuda" if torch.cuda.is_available() else "cpu"
base = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)]).to(device).requires_grad_(False)
quantize_(base, Int8DynamicActivationInt8WeightConfig())
model = nn.Sequential(*map(Side, base)).to(device)
optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad])
for _ in range(3):
    model(torch.randn(256, 2048, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_torchao_s_products_of_integers(tmp_path):
    pytest.importorskip("torchao")
    (tmp_path / "train.py").write_text(INTEGERS)
    found = as_it_runs(tmp_path, "train.py")
    on_card = document(["estimate", "--device", "rtx-4090", "--json", "train.py"], tmp_path)
    assert on_card["anatomy_bytes"]["weights"] == pytest.approx(found["anatomy_bytes"]["weights"], rel=0.01)


def test_torchao_s_update_is_compiled_on_a_card(tmp_path):
    """Eagerly its temporaries take 53 bytes for each number of the largest parameter; compiled, 8."""
    pytest.importorskip("torchao")
    script = TORCHAO.replace("1024", "65536").replace("model =", 'torch.set_default_device("cuda")\nmodel =')
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "plain.py").write_text(script.replace("AdamW8bit(", "torch.optim.SGD("))
    done = run_command("estimate", "--device", "rtx-4090", "--json", "train.py", cwd=tmp_path)
    assert "compiled on CUDA" in done.stderr and "left out" not in done.stderr
    plain = document(["estimate", "--device", "rtx-4090", "--json", "plain.py"], tmp_path)["peak_allocated_bytes"]
    more = json.loads(done.stdout)["peak_allocated_bytes"] - plain
    largest = 64 * 65536
    assert more == pytest.approx(
        2 * 2 * largest + 8 * largest, rel=0.1
    )  # two states of both matrices, and what is kept
