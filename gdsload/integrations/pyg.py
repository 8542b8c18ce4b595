"""Features of a graph's nodes for PyTorch Geometric, gathered out of shards for each sampled subgraph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch_geometric.data import FeatureStore as PygFeatureStore
from torch_geometric.data import TensorAttr

from gdsload.engine.gpu.plain_tensors import each_tensor
from gdsload.errors import OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.paths_and_devices import resolve_device

Source = ShardDataset | str | os.PathLike[str]


class FeatureStore(PygFeatureStore):  # type: ignore[misc]  # its package need not be there
    """A feature store of PyTorch Geometric's over datasets: a sample for each node, a tensor for each field.

        store = FeatureStore({"paper": "papers/", "author": "authors/"}, device="cuda")
        loader = NeighborLoader((store, graph_store), num_neighbors=[10, 10], input_nodes="paper")

    Features come from `ShardDataset.gather`, so they are on the device; fields of one node type that are asked for
    together take one gather. Shards cannot be changed.

    Args:
        datasets: of each node type, a `ShardDataset` or a path to one; one alone for graphs with one type of nodes,
            which has the name None.
        device: where features go; None for the current accelerator, or the CPU if there is none. With worker
            processes, pass ``"cpu"``.

    Raises:
        OptionError: if there is no such device.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(
        self, datasets: Source | Mapping[str | None, Source], *, device: str | torch.device | int | None = None
    ) -> None:
        super().__init__()
        given = datasets if isinstance(datasets, Mapping) else {None: datasets}
        self.datasets = {
            name: one if isinstance(one, ShardDataset) else ShardDataset(one) for name, one in given.items()
        }
        self.device = resolve_device(device)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """The attributes of all tensors: the fields of fixed shape, of all node types."""
        return [
            TensorAttr(group, name)
            for group, dataset in self.datasets.items()
            for name, field in dataset.schema.items()
            if not field.ragged
        ]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[torch.Tensor]:
        """The features of some nodes: those of one node type and the same nodes by one gather."""
        together: dict[tuple[str | None, int], list[TensorAttr]] = {}
        for attr in attrs:
            together.setdefault((attr.group_name, id(attr.index)), []).append(attr)
        found: dict[int, torch.Tensor] = {}
        for some in together.values():
            batch = self._gathered(self._dataset(some[0]), [one.attr_name for one in some], some[0].index)
            found.update({id(one): batch[one.attr_name] for one in some})
        return [found[id(attr)] for attr in attrs]

    def _gathered(self, dataset: ShardDataset, fields: list[str], index: Any) -> dict[str, torch.Tensor]:
        if index is None:
            return {name: each_tensor(dataset.column(name), lambda one: one.to(self.device)) for name in fields}
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(dataset)), dtype=np.int64)
        elif isinstance(index, int):
            return {name: one[0] for name, one in self._gathered(dataset, fields, [index]).items()}
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        return dataset.gather(index, fields=fields, device=self.device)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        dataset = self.datasets.get(attr.group_name)
        if dataset is None or attr.attr_name not in dataset.schema:
            return None
        field = dataset.schema[attr.attr_name]
        return None if field.ragged else (len(dataset), *field.row_shape)

    def _dataset(self, attr: TensorAttr) -> ShardDataset:
        """The dataset of a node type; OptionError if there is none, or its field has no tensor for all nodes."""
        dataset = self.datasets.get(attr.group_name)
        if dataset is None:
            raise OptionError(
                f"there are no features of {attr.group_name!r}",
                remedy=f"There are those of {', '.join(map(repr, self.datasets))}.",
            )
        if attr.attr_name in dataset.schema and dataset.schema[attr.attr_name].ragged:
            raise OptionError(f"the field {attr.attr_name!r} is ragged or a text, of which there is no tensor")
        return dataset

    def _put_tensor(self, *given: Any) -> NoReturn:
        raise OptionError(
            f"{given[-1].attr_name!r} cannot be changed: features in shards are only read",
            remedy="Write a dataset with gdsload.ShardWriter or gdsload.convert, and make a store of that.",
        )

    _remove_tensor = _put_tensor

    def __repr__(self) -> str:
        return f"FeatureStore({self.datasets!r}, device={str(self.device)!r})"
