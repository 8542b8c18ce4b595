"""ResNets of 18 and 50 layers (He et al., Deep Residual Learning for Image Recognition, 2015), and a step of training.

Here, because torch alone has no models, and what trains beside a loader should be what people train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["ResNet"]

_BLOCKS = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}
_CLASSES = 1000


class ResNet:
    """Steps of training: images to bfloat16, forward, backward and SGD with momentum, all in `channels_last`.

    Args:
        name: ``"resnet18"`` or ``"resnet50"``.
        device: where it is trained.
        wrap: makes of the network what is called, as DistributedDataParallel; None: it is itself.
    """

    def __init__(self, name: str, device: torch.device, wrap: Callable[[nn.Module], nn.Module] | None = None) -> None:
        counts, bottleneck = _BLOCKS[name]
        layers: list[nn.Module] = [*_convolution(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, count in enumerate(counts):
            for block in range(count):
                made = _Block(inputs, 64 * 2**stage, 2 if stage and not block else 1, bottleneck)
                layers.append(made)
                inputs = made.outputs
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES)]
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        net = nn.Sequential(*layers).to(device, self._dtype)
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._net: nn.Module = net if wrap is None else wrap(net)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.01, momentum=0.9)
        self._labels = torch.zeros(0, dtype=torch.long, device=device)

    def __call__(self, batch: torch.Tensor) -> None:
        """Train with a batch of bytes ``[images, 3, height, width]``."""
        if len(self._labels) != len(batch):
            self._labels = torch.arange(len(batch), device=batch.device) % _CLASSES
        images = batch.to(self._dtype, memory_format=torch.channels_last).sub_(127.5).div_(73.9)
        self._optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self._net(images).float(), self._labels).backward()
        self._optimizer.step()


class _Block(nn.Module):
    """A residual block: two convolutions of 3×3, or as a bottleneck of 1×1, 3×3 and 1×1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = 4 * width if bottleneck else width
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, self.outputs, 1, 1)]
        if not bottleneck:
            sizes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers: list[nn.Module] = []
        for given, made, side, step in sizes:
            layers += [*_convolution(given, made, side, stride=step), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == self.outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, self.outputs, 1, stride=stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.body(images) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, side: int, *, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False), nn.BatchNorm2d(outputs)]
