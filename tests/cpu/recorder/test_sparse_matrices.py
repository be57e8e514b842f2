"""Sparse matrices in a step: what they are made of, and what products with them take, is counted as it is measured."""

import json

import pytest
from own_scripts import estimated, measured_bytes, written

from snugfit.cli import main

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N, E, D = 4000, 40000, 128
places, numbers = torch.randint(0, N, (2, E)), torch.rand(E)
{made}
x, y = torch.randn(N, D, device=device), torch.randint(0, 7, (N,), device=device)
model = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, 7)]).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    h = model[0](x)
    h = {product}
    loss = nn.functional.cross_entropy(model[1](torch.relu(h)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COO = "graph = torch.sparse_coo_tensor(places, numbers, (N, N)).coalesce().to(device)"
ARRAYS = """
import numpy as np, scipy.sparse as sp
found = sp.coo_matrix((numbers.numpy(), places.numpy()), shape=(N, N)).tocsr().tocoo()
graph = torch.sparse.FloatTensor(torch.tensor(np.vstack([found.row, found.col])).long(), torch.tensor(found.data), (N, N))
graph = graph.to(device)
"""
DROPPED = f"""{ARRAYS}
def dropped(graph):
    kept = (torch.rand(graph._nnz()) + 0.6).int().bool()
    graph = graph.coalesce()
    return torch.sparse.FloatTensor(graph.indices().t()[kept].t(), graph.values()[kept] / 0.6, graph.size())
"""
CSR = f"{COO}.to_sparse_csr()"
LEARNED = "weight = nn.Parameter(torch.rand(E, device=device))"


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("made", "product", "within"),
    [
        (COO, "torch.sparse.mm(graph, h)", 1e-3),
        (COO, "graph.t() @ h", 1e-3),
        (COO, "(h.t() @ graph).t() + (graph @ h[:, 0]).unsqueeze(1)", 1e-3),
        (COO, "torch.sparse.addmm(h, graph * 0.5, h)", 1e-3),
        (ARRAYS, "torch.spmm(graph, h)", 1e-3),
        (DROPPED, "torch.sparse.mm(dropped(graph), h)", 0.02),
        (CSR, "torch.sparse.mm(graph, h)", 1e-3),
        (CSR, "graph.t() @ h", 1e-3),
        (LEARNED, "torch.sparse.mm(torch.sparse_coo_tensor(places.to(device), weight, (N, N)), h)", 0.02),
    ],
)
def test_as_measured(tmp_path, capsys, made, product, within):
    script = written(tmp_path, SCRIPT.format(made=made, product=product))
    _, found, err = estimated(capsys, script, device="cpu")
    assert found is not None, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(script), rel=within)
    _, found, err = estimated(capsys, script)
    assert found is not None, err
    assert found["peak_allocated_bytes"] < 4000 * 4000 * 4 or made is LEARNED


HELD = """
import copy, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        places = torch.randint(0, 500, (2, 2000))
        self.register_buffer("graph", torch.sparse_coo_tensor(places, torch.rand(2000), (500, 500)).coalesce())
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(torch.sparse.mm(self.graph, x))
model = Net().to("cuda")
kept = copy.deepcopy(model)
assert kept.graph.is_sparse and kept.graph.device.type == "cuda"
assert model.graph.layout is torch.sparse_coo and model.graph.is_coalesced() and model.graph.sparse_dim() == 2
assert model.graph.indices().shape == (2, model.graph._nnz()) and model.graph.values().is_cuda
csr = model.graph.to_sparse_csr()
assert csr.crow_indices().shape == (501,) and csr.to_sparse_coo().is_sparse and csr.t().layout is torch.sparse_csc
assert model.graph.to_dense().shape == (500, 500) and (model.graph + model.graph).is_sparse
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(500, 8, device="cuda")).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), "kept.pt")
"""


@pytest.mark.filterwarnings("ignore:Sparse")
def test_questions_are_answered_as_torch_answers_them(tmp_path, capsys):
    code, _, err = estimated(capsys, written(tmp_path, HELD))
    assert code == 0, err
    assert not (tmp_path / "kept.pt").exists()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("line", ["torch.sparse.softmax(graph, 1)", "torch.sparse.mm(graph, graph)"])
def test_what_is_not_simulated_is_said_in_a_sentence(tmp_path, capsys, line):
    script = written(tmp_path, SCRIPT.format(made=COO, product=f"{line} @ h"))
    code, _, err = estimated(capsys, script)
    assert code == 5 and "on a sparse matrix is not simulated: products with dense" in err and "Traceback" not in err


@pytest.mark.filterwarnings("ignore:Sparse")
def test_how_many_numbers_a_dense_matrix_has_can_be_assumed(tmp_path, capsys):
    made = "dense = torch.rand(N, N, device=device)"
    script = written(tmp_path, SCRIPT.format(made=made, product="dense.to_sparse() @ h"))
    few, many = (
        json.loads(
            shown(capsys, ["estimate", "--device", "cpu", "--json", "--assume", f"nonzero={share}", str(script)])
        )
        for share in (0.01, 0.05)
    )
    more = 0.04 * 4000 * 4000 * (2 * 8 + 4)
    assert many["peak_allocated_bytes"] - few["peak_allocated_bytes"] == pytest.approx(2 * more, rel=0.6)


def shown(capsys, words):
    assert main(words) == 0
    return capsys.readouterr().out
