"""Transforms of whole batches, for a loader's `device_transform`.

Each is called with a batch and gives a new one, in which a field is replaced; the batch that it got stays as it was.
What is random is drawn for each sample by itself, from the `generator` that is passed, or else from torch's global one.
"""

from gdsload.transforms.color import ColorJitter
from gdsload.transforms.compose import Compose
from gdsload.transforms.geometry import CenterCrop, RandomCrop, RandomFlip
from gdsload.transforms.mixing import CutMix, MixUp
from gdsload.transforms.pixels import Cast, ChannelsLast, Normalize
from gdsload.transforms.resize import RandomResizedCrop

__all__ = [
    "Cast",
    "CenterCrop",
    "ChannelsLast",
    "ColorJitter",
    "Compose",
    "CutMix",
    "MixUp",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
]
