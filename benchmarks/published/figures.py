"""The figures that others published, each with its source, and what to keep in mind when they stand beside ours."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DLRM", "UNET3D", "WINDOWS", "Published", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One published run: its setting, samples a second, and what was said besides."""

    setting: str
    samples_s: float
    besides: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """A table of others.

    Attributes:
        title: the benchmark, after "The access pattern of".
        pattern: a sentence about it.
        source: where the rows are from, with dates.
        rows: the runs.
        wanted: what the benchmark asks of one accelerator; None if it asks for nothing.
        caveats: sentences to print below the rows.
    """

    title: str
    pattern: str
    source: str
    rows: tuple[Row, ...]
    wanted: Row | None
    caveats: tuple[str, ...]


_NO_RESULT = "This is no result of MLPerf Storage: nothing was submitted or verified, and its rules were not followed."

DLRM = Published(
    "DLRM-B200",
    "Batches of 12 288, 0.375 ms of computation a step, 40 columns of 160 bytes in all.",
    "mlcommons/storage: tests/DLRM_test_results.md (2026-04-26), docs/DLRM_NP_Scaling_Results.md (2026-05-12)",
    (
        Row("28 vCPU, local NVMe, page cache, 4 ranks, Parquet decoded", 388_921, "computing 0.48 % of the time"),
        Row("the same from MinIO over S3", 106_351, "0.11 %"),
        Row("24 vCPU, S3 server on the same host, 1 rank, not decoded", 2_053_984, "7.88 %"),
    ),
    Row("wanted of one accelerator", 0.7 * 12_288 / 0.375e-3, "computing 70 %"),
    (
        _NO_RESULT,
        "Their runs read whole rows of 761 bytes out of Parquet; here 40 packed columns are read.",
        "Their batches end in host memory, and one run had 4 ranks; here one process fills one device.",
        "Version 3.0 came to read without decoding (mlcommons/storage#378): its later figures are of less work.",
    ),
)
UNET3D = Published(
    "unet3d-B200",
    "Samples of 146.6 MB, 68 MB more or less, batches of 7, 0.162 s of computation a step, cold.",
    "mlcommons/storage_results_v3.0, closed, summary.json of each run; docs/UNet3D_NP_Scaling_Results.md",
    (
        Row("a slower shared host", 23.2, "3.40 GB/s, computing 53.7 % of the time"),
        Row("NewFW, one D5-P5336, 384 threads, 1 accelerator", 42.3, "6.2 GB/s, 97.9 %"),
        Row("NewFW, one D7-PS1010, 384 threads, 2 accelerators", 85.0, "12.5 GB/s, 98.4 %"),
        Row("SAMSUNG, one MZTLD15THEPB, 208 threads, 5 accelerators", 194.7, "28.5 GB/s, 90.2 %"),
    ),
    Row("wanted of one accelerator", 0.9 * 7 / 0.162, "computing 90 %"),
    (
        _NO_RESULT,
        "Rates of one drive are first of all the drive's: compare processor seconds, and shares of the drive.",
        "Their datasets are five times the host's memory; here files are dropped from the page cache, as mincore says.",
        "Their batches end in host memory. Their loader throws samples away, and hands out one constant tensor.",
    ),
)
WINDOWS = Published(
    "world-model windows",
    "Batches of 64, 4 frames of 224 x 224 x 3 bytes with 4 left out between two, 20 actions.",
    "galilai-group/stable-worldmodel#214 (2026-04), #230 (2026-05), scripts/benchmark/compare_h5_lance.py",
    (
        Row("HDF5, local, 8 workers", 1080, "11.9 GB"),
        Row("Lance, local, 8 workers", 5059, "3.87 GB of JPEG"),
        Row("Lance with video, 8 workers", 4390, "2.6 MB"),
        Row("Lance from S3, 8 workers", 3164),
    ),
    None,
    (
        "Their frames are real and compressed, and their workers decode them; ours are random bytes, not compressed.",
        "Their machine is not named. Proprioception, a few floats a frame, is left out here.",
    ),
)
