"""Training by DistributedDataParallel, as its tutorial has it: torchrun --nproc-per-node 2 ddp.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measuring import measured
from parts import BATCH, LR, STEPS, build, data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    with measured() as after_step:
        model = DistributedDataParallel(build())
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
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "weights.pt")
    dist.destroy_process_group()


main()
