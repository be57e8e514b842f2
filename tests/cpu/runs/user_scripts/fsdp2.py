"""Training by FSDP2, as its tutorial has it: torchrun --nproc-per-node 2 fsdp2.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measuring import measured
from parts import BATCH, LR, STEPS, build, data
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    with measured() as after_step:
        model = build()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        samples = TensorDataset(*data())
        loader = DataLoader(samples, BATCH // dist.get_world_size(), sampler=DistributedSampler(samples))
        for epoch in range(STEPS):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                after_step()
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(weights, "weights.pt")
    dist.destroy_process_group()


main()
