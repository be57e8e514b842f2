"""A detector of one stage, as the YOLO family is built.

A backbone, a neck that carries what it sees up and down, and heads for three resolutions.

    snugfit plan examples/yolo.py:medium --image-size 640 --batch-size 64 --device rtx-4090

Layers and sizes are those of YOLOv8 (nano 3,157,184 parameters, medium 25,902,624). The loss is simpler: an object counts
where its centre lies, at the resolution that its size calls for, and each image's loss is a mean over its own objects.

Source: Redmon et al., 2016 (arXiv:1506.02640); Wang et al., CSPNet, 2019 (arXiv:1911.11929); Liu et al., PANet, 2018
(arXiv:1803.01534); Li et al., Generalized Focal Loss, 2020 (arXiv:2006.04388).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BINS = 16
"""A distance from a cell to a side of a box is a mean over so many numbers of cells."""
STRIDES = (8, 16, 32)
OBJECTS = 8
"""Objects in a picture; those of COCO have 7 on average."""


class Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1):
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )


class Bottleneck(nn.Module):
    def __init__(self, width: int, residual: bool):
        super().__init__()
        self.layers, self.residual = nn.Sequential(Conv(width, width, 3), Conv(width, width, 3)), residual

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class Partial(nn.Module):
    """Half of the channels go through a chain of layers; all that its links give goes on."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool = False):
        super().__init__()
        half = outputs // 2
        self.split = Conv(inputs, outputs)
        self.chain = nn.ModuleList(Bottleneck(half, residual) for _ in range(depth))
        self.join = Conv((2 + depth) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.split(x).chunk(2, dim=1))
        for link in self.chain:
            kept.append(link(kept[-1]))
        return self.join(torch.cat(kept, dim=1))


class Pyramid(nn.Module):
    """The largest of ever wider surroundings."""

    def __init__(self, width: int):
        super().__init__()
        self.narrow, self.join = Conv(width, width // 2), Conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.narrow(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, 1, 2))
        return self.join(torch.cat(kept, dim=1))


def head(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Conv(inputs, width, 3), Conv(width, width, 3), nn.Conv2d(width, outputs, 1))


def shy(layers: nn.Sequential) -> nn.Sequential:
    """Makes heads begin with little faith in any class, for almost every cell shows none."""
    nn.init.constant_(layers[-1].bias, -10.0)
    return layers


class Yolo(nn.Module):
    def __init__(self, width: float, depth: float, most: int, num_classes: int):
        super().__init__()
        a, b, c, d, e = (int(min(one, most) * width) for one in (64, 128, 256, 512, 1024))
        few, many = max(round(3 * depth), 1), max(round(6 * depth), 1)
        self.num_classes = num_classes
        self.to_8 = nn.Sequential(
            Conv(3, a, 3, 2), Conv(a, b, 3, 2), Partial(b, b, few, True), Conv(b, c, 3, 2), Partial(c, c, many, True)
        )
        self.to_16 = nn.Sequential(Conv(c, d, 3, 2), Partial(d, d, many, True))
        self.to_32 = nn.Sequential(Conv(d, e, 3, 2), Partial(e, e, few, True), Pyramid(e))
        self.up_16, self.up_8 = Partial(d + e, d, few), Partial(c + d, c, few)
        self.halve_8, self.halve_16 = Conv(c, c, 3, 2), Conv(d, d, 3, 2)
        self.down_16, self.down_32 = Partial(c + d, d, few), Partial(d + e, e, few)
        box, label = max(BINS, c // 4, 4 * BINS), max(c, min(num_classes, 100))
        self.boxes = nn.ModuleList(head(one, box, 4 * BINS) for one in (c, d, e))
        self.labels = nn.ModuleList(shy(head(one, label, num_classes)) for one in (c, d, e))

    def forward(self, images: Tensor, boxes: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Returns for each cell of all resolutions its box and its classes; with boxes and labels, the loss.

        `images`: `[B, 3, S, S]`. `boxes`: corners in pixels `[B, N, 4]`. `labels`: `[B, N]`.
        Returns `[B, cells, 64 + classes]`.
        """
        c = self.to_8(images)
        d = self.to_16(c)
        e = self.to_32(d)
        middle = self.up_16(torch.cat([F.interpolate(e, scale_factor=2.0), d], dim=1))
        fine = self.up_8(torch.cat([F.interpolate(middle, scale_factor=2.0), c], dim=1))
        middle = self.down_16(torch.cat([self.halve_8(fine), middle], dim=1))
        coarse = self.down_32(torch.cat([self.halve_16(middle), e], dim=1))
        found = [
            torch.cat([box(x), label(x)], dim=1).flatten(2)
            for box, label, x in zip(self.boxes, self.labels, (fine, middle, coarse), strict=True)
        ]
        cells = torch.cat(found, dim=2).transpose(1, 2)
        return cells if boxes is None or labels is None else self.loss(cells, boxes, labels, images.shape[-1])

    def loss(self, cells: Tensor, boxes: Tensor, labels: Tensor, side: int) -> Tensor:
        """How far the cells are from what is in the pictures: overlap and sides of boxes, and classes everywhere."""
        strides = torch.tensor(STRIDES, device=cells.device)
        corner, extent = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
        level = torch.bucketize(extent.amax(dim=2), strides[1:] * 6)  # [B, N]: the fine one, the middle, the coarse
        stride, across = strides[level], side // strides
        starts = (across * across).cumsum(0) - across * across
        centre = corner + extent / 2
        place = (centre / stride[..., None]).long()
        index = starts[level] + place[..., 1] * across[level] + place[..., 0]
        here = cells.gather(1, index[..., None].expand(-1, -1, cells.shape[2]))
        distances = here[..., : 4 * BINS].unflatten(2, (4, BINS))
        middle = place + 0.5
        scaled = boxes / stride[..., None]
        wanted = torch.cat([middle - scaled[..., :2], scaled[..., 2:] - middle], dim=2).clamp(0, BINS - 1.01)
        found = distances.softmax(dim=3) @ torch.arange(BINS, device=cells.device, dtype=distances.dtype)
        overlap = overlaps(found, wanted)
        sides = side_loss(distances, wanted)
        aims = torch.zeros_like(cells[..., 4 * BINS :])
        aims[torch.arange(len(index), device=cells.device)[:, None], index, labels] = 1.0
        classes = F.binary_cross_entropy_with_logits(cells[..., 4 * BINS :], aims, reduction="none")
        # The weights of YOLOv8: 7.5 for boxes, 1.5 for their sides, 0.5 for classes.
        return 7.5 * (1 - overlap).mean() + 1.5 * sides.mean() + 0.5 * classes.sum() / index.numel()

    def training_batch(self, batch_size: int, image_size: int = 640) -> dict[str, Tensor]:
        """What a step takes: pictures with objects of all sizes."""
        corner = torch.rand(batch_size, OBJECTS, 2) * image_size / 2
        extent = (0.02 + 0.48 * torch.rand(batch_size, OBJECTS, 2)) * image_size
        return {
            "images": torch.rand(batch_size, 3, image_size, image_size),
            "boxes": torch.cat([corner, corner + extent], dim=2),
            "labels": torch.randint(self.num_classes, (batch_size, OBJECTS)),
        }


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Shared area by joint area `[B, N]` of boxes that are distances to four sides `[B, N, 4]` from the same point."""
    shared = torch.minimum(one, other)
    both = (shared[..., 0] + shared[..., 2]) * (shared[..., 1] + shared[..., 3])
    areas = [(box[..., 0] + box[..., 2]) * (box[..., 1] + box[..., 3]) for box in (one, other)]
    return both / (areas[0] + areas[1] - both + 1e-7)


def side_loss(distances: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy to the two whole numbers around each wanted distance; `distances`: `[B, N, 4, BINS]`."""
    below = wanted.long()
    share = wanted - below
    scores = distances.log_softmax(dim=3)
    near, far = (scores.gather(3, one[..., None])[..., 0] for one in (below, below + 1))
    return -(near * (1 - share) + far * share)


def nano(num_classes: int = 80) -> nn.Module:
    """Returns a detector of YOLOv8 n's size."""
    return Yolo(0.25, 1 / 3, 1024, num_classes)


def medium(num_classes: int = 80) -> nn.Module:
    """Returns a detector of YOLOv8 m's size."""
    return Yolo(0.75, 2 / 3, 768, num_classes)
