"""Transforms of whole batches, for a loader's `device_transform`; and how images are decoded, for its `decode`.

Each transform is called with a batch and returns a new one, in which a field is replaced; the old batch is not changed.
Random numbers are drawn for each sample by itself, from the `generator` that is passed, or else from torch's global
one. `DecodeImage` is no transform, but an option of a loader's `decode`.
"""

from gdsload.transforms.color import ColorJitter
from gdsload.transforms.compose import Compose
from gdsload.transforms.decode_image import DecodeImage
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
    "DecodeImage",
    "MixUp",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
]
