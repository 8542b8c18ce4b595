"""PyTorch Geometric's feature store over shards: what its in-memory store gives, for any way to ask."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.data.feature_store import AttrView
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

import gdsload
from gdsload import OptionError
from gdsload.integrations.pyg import FeatureStore

PAPERS, AUTHORS = 200, 50


@pytest.fixture
def hetero(tmp_path):
    """A graph in memory, and a store of its features in shards."""
    data = HeteroData()
    data["paper"].x = torch.rand(PAPERS, 16)
    data["paper"].y = torch.arange(PAPERS)
    data["author"].x = torch.rand(AUTHORS, 4, 2)
    for name in ("paper", "author"):
        with gdsload.ShardWriter(tmp_path / name, shard_bytes=4096) as writer:
            writer.write_batch({**data[name].to_dict(), "title": ["a title"] * data[name].num_nodes})
    return data, FeatureStore({name: tmp_path / name for name in ("paper", "author")}, device="cpu")


INDICES = [
    torch.tensor([3, 1, 1, 49]), [7, 0], slice(None), slice(5, 40, 3), None, 4, torch.tensor([], dtype=torch.long),
    torch.arange(PAPERS) % 3 == 0,
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_it_gives_what_the_store_in_memory_gives(hetero, index):
    data, store = hetero
    for group, name in (("paper", "x"), ("paper", "y"), ("author", "x")):
        wanted = data[group][name]
        chosen = index
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
            chosen = index[: len(wanted)]
        if chosen is not None:
            wanted = wanted[chosen]
        found = store.get_tensor(group, name, chosen)
        assert torch.equal(torch.as_tensor(found), wanted)


def test_several_fields_come_together(hetero):
    data, store = hetero
    index = torch.tensor([5, 199, 5])
    attrs = [TensorAttr("paper", "y", index), TensorAttr("author", "x", index[:1]), TensorAttr("paper", "x", index)]
    y, author, x = store.multi_get_tensor(attrs)
    assert torch.equal(y, data["paper"].y[index])
    assert torch.equal(x, data["paper"].x[index])
    assert torch.equal(author, data["author"].x[[5]])


def test_what_there_is_and_how_large(hetero):
    _, store = hetero
    found = [(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()]
    assert sorted(found) == [("author", "x"), ("paper", "x"), ("paper", "y")]
    assert store.get_tensor_size("author", "x") == (AUTHORS, 4, 2)
    assert store.get_tensor_size("paper", "y") == (PAPERS,)
    assert store.get_tensor_size("paper", "nothing") is None
    view = store["paper", "x"]
    assert isinstance(view, AttrView)
    assert view[[1, 2]].shape == (2, 16)


def test_it_is_read_only_and_says_what_there_is(hetero):
    _, store = hetero
    with pytest.raises(OptionError, match="'x' cannot be changed: features in shards are only read"):
        store["paper", "x", None] = torch.zeros(PAPERS, 16)
    with pytest.raises(OptionError, match="cannot be changed"):
        del store["paper", "x", None]
    with pytest.raises(OptionError, match="no features of 'venue'.*'paper', 'author'"):
        store["venue", "x", None]
    with pytest.raises(OptionError, match="'title' is ragged or a text"):
        store["paper", "title", None]


class Neighbours(BaseSampler):
    """All neighbours of papers: PyTorch Geometric's own sampler takes pyg-lib or torch-sparse, of which PyPI has no wheel."""

    def __init__(self, edges):
        self.edges = edges

    def found(self, papers):
        edge = torch.isin(self.edges[1], papers).nonzero().squeeze(1)
        sources, targets = self.edges[:, edge]
        return sources, (targets[:, None] == papers).int().argmax(1), edge

    def sample_from_nodes(self, index, **_):
        sources, col, edge = self.found(index.node)
        authors, row = sources.unique(return_inverse=True)
        nodes = {"paper": index.node, "author": authors}
        return HeteroSamplerOutput(nodes, {WRITES: row}, {WRITES: col}, {WRITES: edge}, metadata=(index.input_id, None))

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError


class Citations(Neighbours):
    """The same where there is one type of nodes: the papers come before those that cite them."""

    def sample_from_nodes(self, index, **_):
        sources, col, edge = self.found(index.node)
        others = sources[~torch.isin(sources, index.node)].unique()
        nodes = torch.cat([index.node, others])
        row = (sources[:, None] == nodes).int().argmax(1)
        return SamplerOutput(nodes, row, col, edge, metadata=(index.input_id, None))


WRITES = ("author", "writes", "paper")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_neighbor_loader_puts_features_of_shards_into_its_batches(hetero, workers):
    data, store = hetero
    graph = HeteroData()
    graph[WRITES].edge_index = edges = torch.stack(
        [torch.randint(0, AUTHORS, (900,)), torch.randint(0, PAPERS, (900,))]
    )
    loader = NeighborLoader(
        (store, graph), num_neighbors=[-1], input_nodes="paper", batch_size=32, shuffle=True,
        num_workers=workers, neighbor_sampler=Neighbours(edges),
    )  # fmt: skip
    seen, found = [], []
    for batch in loader:
        papers, authors = batch["paper"], batch["author"]
        assert torch.equal(papers.x, data["paper"].x[papers.n_id])
        assert torch.equal(papers.y, papers.n_id)
        assert torch.equal(authors.x, data["author"].x[authors.n_id])
        row, col = batch[WRITES].edge_index
        assert torch.equal(torch.stack([authors.n_id[row], papers.n_id[col]]), edges[:, batch[WRITES].e_id])
        seen += papers.n_id.tolist()
        found += batch[WRITES].e_id.tolist()
    assert sorted(seen) == list(range(PAPERS))
    assert sorted(found) == list(range(900))


def test_a_neighbor_loader_of_a_graph_of_one_type(hetero, tmp_path):
    data, _ = hetero
    store = FeatureStore(tmp_path / "paper", device="cpu")
    assert torch.equal(store[None, "x", torch.tensor([4, 2])], data["paper"].x[[4, 2]])
    edges = torch.randint(0, PAPERS, (2, 900))
    graph = Data(edge_index=edges, num_nodes=PAPERS)
    loader = NeighborLoader(
        (store, graph), [-1], torch.arange(PAPERS), batch_size=32, neighbor_sampler=Citations(edges)
    )
    found = []
    for batch in loader:
        assert torch.equal(batch.x, data["paper"].x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])
        found += batch.n_id[: batch.batch_size].tolist()
    assert found == list(range(PAPERS))
