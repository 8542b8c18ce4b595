"""Samples of many shapes out of the page cache into a GPU, by the loader as its user calls it, beside the link.

    python -m benchmarks.gpu.shapes --out benchmarks/results/gpu-shapes.json
    python -m benchmarks.gpu.shapes --out shapes.json --cases tokens-offsets tokens-padded

The loaders are open all the time, and take turns: a trial is some epochs of one of them. Bytes are those of the samples
as they are stored, whatever a batch makes of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import gdsload
from benchmarks.folders import existing_folder
from benchmarks.gpu.below import Below
from benchmarks.gpu.free_drive.trials import link
from benchmarks.gpu.gathers import Gathers
from benchmarks.gpu.suite.trial import cpu_s, synchronise
from benchmarks.record import head, publish, ratio, spread
from benchmarks.table import short
from benchmarks.workloads import SEED
from gdsload import transforms
from gdsload.system.units import parse_bytes

__all__ = ["CASES", "KINDS", "Case", "Kind", "Loads", "case_parser", "compare", "main", "render"]

_CHUNK_BYTES, _MOST_WARM_S = 2**25, 10.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Samples of one shape: fields by name; those that are ragged have between so many rows.

    Attributes:
        fields: by name.
        lengths: of ragged fields the least and the most rows.
        times: how many times as many bytes there are of them: an eighth of an epoch should be long enough, too.
        pack: which fields are stored together.
    """

    fields: dict[str, gdsload.Field]
    lengths: tuple[int, int] = (0, 0)
    times: int = 1
    pack: Literal["auto"] | tuple[str, ...] = "auto"

    @property
    def sample_bytes(self) -> float:
        """Mean bytes of a sample."""
        mean = sum(self.lengths) / 2
        return sum(field.row_bytes * (mean if field.ragged else 1) for field in self.fields.values())

    def write(self, folder: Path, nbytes: int, shards: int = 8) -> None:
        """Write seeded random samples of about so many bytes; a chunk of them again and again, if they are many."""
        rng, samples = np.random.default_rng(SEED), max(int(nbytes // self.sample_bytes), 64)
        step = min(max(int(_CHUNK_BYTES // self.sample_bytes), 1), samples)
        chunk = {name: self._values(one, rng, step) for name, one in self.fields.items()}
        each = max(nbytes // shards, 4096)
        with gdsload.ShardWriter(folder, self.fields, shard_bytes=each, pack_fields=self.pack) as writer:
            for _ in range(-(-samples // step)):
                writer.write_batch(chunk)

    def _values(self, field: gdsload.Field, rng: np.random.Generator, count: int) -> Any:
        dtype = np.dtype(field.dtype.name)
        if not field.ragged:
            return _random(rng, count * field.row_bytes).view(dtype).reshape(count, *field.row_shape)
        offsets = np.cumsum(np.append(0, rng.integers(*self.lengths, count, endpoint=True)))
        return _random(rng, int(offsets[-1]) * dtype.itemsize).view(dtype), offsets


def _random(rng: np.random.Generator, nbytes: int) -> NDArray[np.uint8]:
    """Bytes, eight at a time: byte by byte they take as long as all the rest."""
    return rng.integers(-(2**63), 2**63, -(-nbytes // 8)).view(np.uint8)[:nbytes]


_TWO = {"x": gdsload.Field("uint8", (64,)), "y": gdsload.Field("int64", ())}
_SCALARS = {f"s{number:02}": gdsload.Field("int32", ()) for number in range(40)}
KINDS = {
    "images": Kind({"x": gdsload.Field("uint8", (3, 224, 224))}, times=4),
    "volumes": Kind({"x": gdsload.Field("uint8", (32, 1024, 1024))}),
    "rows-4k": Kind({"x": gdsload.Field("uint8", (4096,))}),
    "floats-1025": Kind({"x": gdsload.Field("float32", (1025,))}),
    "thumbnails": Kind({"x": gdsload.Field("uint8", (3, 65, 65))}),
    "rows-48k": Kind({"x": gdsload.Field("uint8", (48, 1024))}),
    "tokens": Kind({"x": gdsload.Field("int32", (None,))}, (64, 1984)),
    "files": Kind({"x": gdsload.Field("uint8", (None,))}, (20_000, 94_000), times=4),
    "two-fields": Kind(_TWO),
    "two-fields-packed": Kind(_TWO, pack=("x", "y")),
    "scalars": Kind(_SCALARS),
    "scalars-apart": Kind(_SCALARS, pack=()),
    "one-field": Kind({"x": gdsload.Field("uint8", (160,))}),
}


def _augmented() -> transforms.Compose:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return transforms.Compose(
        [transforms.RandomCrop("x", 192), transforms.RandomFlip("x"), transforms.Normalize("x", mean, std)]
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One load: samples of a kind, and what the loader is given."""

    name: str
    kind: str
    batch_size: int
    shuffle: Any = "full"
    options: dict[str, Any] = field(default_factory=dict)
    augmented: bool = False
    below: bool = False
    """True if only the reads are made, without a loader."""
    gathers: int = 0
    """By how many threads samples are asked for by index, without a loader; 0: by a loader."""
    window: int = 0
    """How many neighbours a sample is made of; 0: it is one."""

    def open(self, folder: Path, device: torch.device, **more: Any) -> gdsload.DataLoader:
        """Its loader."""
        transform: dict[str, Any] = {"device_transform": _augmented()} if self.augmented else {}
        data: Any = gdsload.Windows(folder / self.kind, self.window, self.window) if self.window else folder / self.kind
        return gdsload.DataLoader(
            data, self.batch_size, self.shuffle, device=device, **self.options, **transform, **more
        )


_BOUNCE, _HOST = {"backend": "bounce"}, {"backend": "host"}
_RANK = {"ranks": (3, 8)}
CASES = (
    Case("images", "images", 256),
    Case("images-32", "images", 32),
    Case("images-32-of-8-ranks", "images", 32, options=_RANK),
    Case("images-augmented", "images", 256, augmented=True),
    Case("volumes-1", "volumes", 1),
    Case("volumes-2", "volumes", 2),
    Case("volumes-4", "volumes", 4),
    Case("rows-4k", "rows-4k", 2048),
    Case("rows-4k-windows", "rows-4k", 128, window=16),
    Case("rows-4k-gather", "rows-4k", 2048, gathers=1),
    Case("rows-4k-gather-65536", "rows-4k", 65_536, gathers=1),
    Case("rows-4k-gather-2-threads", "rows-4k", 16_384, gathers=2),
    Case("floats-1025", "floats-1025", 2048),
    Case("thumbnails", "thumbnails", 512),
    Case("rows-48k", "rows-48k", 256),
    Case("tokens-offsets", "tokens", 256, options={"ragged": "offsets"}),
    Case("tokens-padded", "tokens", 256, options={"ragged": "padded"}),
    Case("tokens-jagged", "tokens", 256, options={"ragged": "jagged"}),
    Case("tokens-offsets-2048", "tokens", 2048, options={"ragged": "offsets"}),
    Case("files", "files", 256, options={"ragged": "offsets"}),
    Case("two-fields", "two-fields", 65_536),
    Case("two-fields-packed", "two-fields-packed", 65_536),
    Case("scalars", "scalars", 4096),
    Case("scalars-apart", "scalars-apart", 4096),
    Case("one-field", "one-field", 4096),
    Case("scalars-65536", "scalars", 65_536),
    Case("one-field-65536", "one-field", 65_536),
    Case("bounce-images-in-order", "images", 256, False, _BOUNCE),
    Case("bounce-images-in-order-below", "images", 256, False, _BOUNCE, below=True),
    Case("bounce-images", "images", 256, "full", _BOUNCE),
    Case("bounce-images-below", "images", 256, "full", _BOUNCE, below=True),
    Case("bounce-images-block", "images", 256, "block", _BOUNCE),
    Case("bounce-volumes-2", "volumes", 2, "full", _BOUNCE),
    Case("bounce-tokens", "tokens", 256, "full", {**_BOUNCE, "ragged": "offsets"}),
    Case("host-images-in-order", "images", 256, False, _HOST),
    Case("host-images", "images", 256, "full", _HOST),
    Case("host-images-block", "images", 256, "block", _HOST),
    Case("host-images-32", "images", 32, "full", _HOST),
    Case("host-rows-4k", "rows-4k", 2048, "full", _HOST),
    Case("host-tokens", "tokens", 256, "full", {**_HOST, "ragged": "offsets"}),
)


class Loads:
    """Epochs of a loader."""

    def __init__(self, loader: gdsload.DataLoader, each: int) -> None:
        self._loader, self._each = loader, each

    def epoch(self) -> int:
        """Go through all samples; returns how many stored ones they are."""
        before = self._loader.stats.samples
        for _ in self._loader:
            pass
        return (self._loader.stats.samples - before) * self._each

    def ready(self) -> bool:
        """Return whether no shards are being registered any more, so that later epochs are read as the last one was."""
        tiers = self._loader.cache.tiers.values()
        return not any(not tier.trouble and tier.shards < self._loader.cache.shards for tier in tiers)

    def registered(self) -> int:
        """The number of shards in tiers."""
        return sum(tier.shards for tier in self._loader.cache.tiers.values())

    def paths(self) -> dict[str, int]:
        """Bytes moved so far, by path."""
        return self._loader.backend.bytes_by_path

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()


class _Entry:
    """A case, what loads it, which is open and warm, and its trials."""

    def __init__(self, case: Case, folder: Path, device: torch.device, warm_s: float) -> None:
        self.case, self.device, self.trials = case, device, list[dict[str, float]]()
        compare(case, folder / "small", device)
        data = folder / "full" / case.kind
        self._sample_bytes = sum(path.stat().st_size for path in data.glob("*.safetensors")) / len(
            gdsload.ShardDataset(data)
        )
        self._loads: Loads | Below | Gathers
        if case.below:
            self._loads = Below(data, device, shuffled=bool(case.shuffle))
        elif case.gathers:
            self._loads = Gathers(data, device, case.batch_size, case.gathers)
        else:
            self._loads = Loads(case.open(folder / "full", device), max(case.window, 1))
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < warm_s or (passed < _MOST_WARM_S and not self._loads.ready()):
            self._loads.epoch()

    def trial(self, seconds: float) -> None:
        """Some whole epochs, until the GPU has ended all work."""
        samples, cpu, start = 0, cpu_s(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            samples += self._loads.epoch()
        synchronise(self.device)
        took, nbytes = time.perf_counter() - start, samples * self._sample_bytes
        self.trials.append(
            {
                "gb_s": nbytes / took / 1e9,
                "rows_s": samples / took,
                "cpu_s_per_gb": (cpu_s() - cpu) / (nbytes / 1e9),
            }
        )

    def to_json(self, links: list[float]) -> dict[str, Any]:
        """As it goes into the record."""
        columns = {key: [trial[key] for trial in self.trials] for key in self.trials[0]}
        return {
            "name": self.case.name,
            "batch_size": self.case.batch_size,
            "bytes_by_path": self._loads.paths(),
            "trials": self.trials,
            **{key: spread(values) for key, values in columns.items()},
            "of_p": ratio(columns["gb_s"], links),
        }

    def close(self) -> None:
        """Close what loads it."""
        self._loads.close()


def _samples(found: Any) -> list[torch.Tensor]:
    """The samples of a field of a batch, in whatever form."""
    if isinstance(found, tuple):
        values, beside = (part.cpu() for part in found)
        if values.dim() == 2:
            return [row[:count] for row, count in zip(values, beside.tolist(), strict=True)]
        return list(values.split(torch.diff(beside).tolist()))
    return list(found.cpu().unbind())


def _as_bytes(sample: torch.Tensor) -> torch.Tensor:
    """The bytes of a sample, to compare: random floats may be NaN, which is not equal to itself."""
    return sample.reshape(-1).view(torch.uint8)


def compare(case: Case, folder: Path, device: torch.device) -> None:
    """Compare every byte of an epoch over few samples with what the dataset says of them by index.

    Raises:
        RuntimeError: if one is wrong.
    """
    if case.augmented or case.below:
        return  # what transforms make is for their tests, and what is only read is not gathered
    dataset = gdsload.ShardDataset(folder / case.kind)
    if case.gathers:
        ids = np.random.default_rng(SEED).permutation(len(dataset))
        if not torch.equal(dataset.gather(ids, device=device)["x"].cpu(), dataset.read_batch(ids)["x"]):
            raise RuntimeError(f"{case.name}: a batch is not what the files hold")
        return
    with case.open(folder, device, with_index=True) as loader:
        for batch in loader:
            index = batch.pop("index")
            if case.window:
                index = (index[:, None] * case.window + torch.arange(case.window)).flatten()
            expected = dataset.read_batch(index)
            for name, found in batch.items():
                pairs = zip(
                    _samples(found.flatten(0, 1) if case.window else found), _samples(expected[name]), strict=True
                )
                if not all(torch.equal(_as_bytes(ours), _as_bytes(theirs)) for ours, theirs in pairs):
                    raise RuntimeError(f"{case.name}: a batch is not what the files hold")


def case_parser(module: str, description: str, names: list[str]) -> argparse.ArgumentParser:
    """A command line that chooses among cases of these names."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--cases", nargs="+", choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work-dir", type=existing_folder, help="where the files go (default: the temporary folder)")
    return parser


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = case_parser("benchmarks.gpu.shapes", "samples of many shapes", [case.name for case in CASES])
    parser.add_argument("--seconds-per-trial", type=float, default=0.3, help="timed seconds (default: 0.3)")
    parser.add_argument(
        "--bytes", default="2GiB", help="of each kind of samples, of images and files 4 times (default: 2GiB)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    options = parse(arguments)
    device = torch.device(options.device)
    every = [case for case in CASES if device.type == "cuda" or "backend" not in case.options]
    cases = [case for case in every if not options.cases or case.name in options.cases]
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as name:
        folder = Path(name)
        for kind in dict.fromkeys(case.kind for case in cases):
            nbytes = parse_bytes(options.bytes, "--bytes")
            KINDS[kind].write(folder / "full" / kind, KINDS[kind].times * nbytes)
            KINDS[kind].write(folder / "small" / kind, min(2**20, nbytes), shards=3)
            _say(f"{kind}: written")
        entries = []
        for case in cases:
            entries.append(_Entry(case, folder, device, options.seconds_per_trial))
            _say(f"{case.name}: bytes compared, read once")
        links = []
        for number in range(options.rounds):
            _say(f"round {number + 1} of {options.rounds}")
            links.append(link(device, options.seconds_per_trial)["gb_s"])
            for entry in entries:
                entry.trial(options.seconds_per_trial)
        found = [entry.to_json(links) for entry in entries]
        for entry in entries:
            entry.close()
    begin = head("benchmarks.gpu.shapes", arguments, device)
    return publish(begin, options, render, link={"gb_s": spread(links)}, cases=found)


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where, p = record["machine"], record["link"]["gb_s"]
    on = f"{where.get('gpu', where['cpu'])}, {where['cores']} cores, torch {record['versions']['torch']}"
    lines = [
        f"{on}, {record['date'][:10]}; out of the page cache. P: {p['median']:.1f} GB/s.",
        f"Median (quartiles) of {record['rounds']} interleaved rounds; bytes compared before.",
        "",
        "| case | GB/s | samples/s | of P | CPU seconds a GB | bytes by path |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        rate, of_p = entry["gb_s"], entry["of_p"]
        lines.append(
            f"| {entry['name']}, batch {entry['batch_size']} "
            f"| {rate['median']:.2f} ({rate['q1']:.2f}–{rate['q3']:.2f}) | {short(entry['rows_s']['median'])} "
            f"| {of_p['median']:.3f} ({of_p['q1']:.3f}–{of_p['q3']:.3f}) | {entry['cpu_s_per_gb']['median']:.3f} "
            f"| {', '.join(entry['bytes_by_path'])} |"
        )
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
