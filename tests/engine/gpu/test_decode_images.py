"""Which images a GPU is given to decode, and what becomes of them and of the others."""

import ctypes
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from gdsload import FormatError
from gdsload.engine.gpu import decode_images, device_queue, jpeg_decoders, resample_device
from gdsload.engine.gpu.decode_images import DeviceImages
from gdsload.engine.gpu.jpeg_decoders import HardwareDecoder, ListDecoder
from gdsload.engine.gpu.nvjpeg import NvJpeg, destinations
from gdsload.engine.gpu.pixels import turned
from gdsload.engine.images.decode import HostImages, ImageBatch
from gdsload.engine.images.encoded import EncodedImages, look_at
from gdsload.engine.images.frames import Draws
from gdsload.engine.images.host_decoders import upright
from gdsload.transforms import DecodeImage


def encoded(kind, mode="RGB", **options):
    out = io.BytesIO()
    Image.new("RGB", (20, 10), (9, 80, 200)).convert(mode).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "taken"), [(encoded("JPEG"), True), (encoded("JPEG") + b"\0" * 9, True), (encoded("JPEG")[:-2], False)]
)
def test_baseline_jpegs_with_an_end_are_for_the_gpu(data, taken):
    assert look_at([batch_of([data, b"anything"]).batch["x"]], 1000).hardware().tolist() == [taken, False]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tensors_are_turned_as_arrays_are(orientation):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 7, 3), np.uint8)
    found = turned(torch.from_numpy(pixels).permute(2, 0, 1), orientation)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), upright(pixels, orientation))


class Waited:
    """A stream, and an event of it, where there are none."""

    cuda_stream, device = 0, torch.device("cpu")

    def synchronize(self):
        pass


def by_pillow(data, device):
    found = []
    for one in data:
        with Image.open(io.BytesIO(one.numpy().tobytes())) as image:
            found.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous())
    return found


class Library:
    """A stand-in for nvJPEG that decodes by Pillow; it refuses some formats."""

    def __init__(self, refused=()):
        self.refused, self.formats, self.alive = refused, {}, 0
        self.initialized, self.wrong, self.calls = 0, False, []

    def nvjpegCreateEx(self, backend, allocator, pinned, flags, handle):
        assert backend == 3
        handle._obj.value = 1
        self.alive += 1
        return 0

    def nvjpegJpegStateCreate(self, handle, state):
        self.alive += 1
        state._obj.value = self.alive
        return 0

    def nvjpegDecodeBatchedInitialize(self, handle, state, count, threads, form):
        self.formats[state.value] = count, form
        self.initialized += 1
        return 3 if self.wrong else 0

    def nvjpegDecodeBatched(self, handle, state, data, lengths, targets, stream):
        count, form = self.formats[state.value]
        self.calls.append((form, count))
        if form in self.refused:
            return 6
        data, lengths, targets = (
            np.ctypeslib.as_array(ctypes.cast(one, ctypes.POINTER(ctypes.c_int64)), (count * width,)).tolist()
            for one, width in ((data, 1), (lengths, 1), (targets, 8))
        )
        planes = {2: 1, 3: 3}[form]
        for number, (address, nbytes) in enumerate(zip(data, lengths, strict=True)):
            with Image.open(io.BytesIO(ctypes.string_at(address, nbytes))) as image:
                pixels = np.array(image.convert("L" if planes == 1 else "RGB")).reshape(image.height, image.width, -1)
            for plane in range(planes):
                assert targets[8 * number + 4 + plane] == pixels.shape[1]
                memory = np.ascontiguousarray(pixels[:, :, plane])
                ctypes.memmove(targets[8 * number + plane], memory.ctypes.data, memory.nbytes)
        return 0

    def nvjpegJpegStateDestroy(self, state):
        self.alive -= 1

    def nvjpegDestroy(self, handle):
        self.alive -= 1


def refuse(data, device):
    raise RuntimeError("not today")


def too_small(data, device):
    return [one[:, 1:] for one in by_pillow(data, device)]


@pytest.fixture
def on_cpu(monkeypatch):
    """Stand-ins for CUDA's streams, so that all but what they are for is done on the CPU."""
    monkeypatch.setattr(decode_images, "side_stream", lambda device: Waited())
    for module in (decode_images, device_queue):
        monkeypatch.setattr(module, "on", lambda stream: nullcontext())
    for module in (decode_images, device_queue, jpeg_decoders):
        monkeypatch.setattr(module, "record", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Waited())
    monkeypatch.setattr(resample_device, "can_launch", lambda: False)


def decoding(opened):
    return closing(DeviceImages({"x": WANTED["random"]}, torch.device("cpu"), opened))


def batch_of(images):
    lengths = np.array([len(one) for one in images], np.int64)
    values = torch.from_numpy(np.frombuffer(bytearray(b"".join(images)), np.uint8))
    draws = Draws(5, np.arange(len(images)))
    return ImageBatch(
        {"x": EncodedImages(values, lengths)},
        draws,
        lambda number: (number + 100, "a.safetensors"),
        lambda: np.arange(len(images)),
    )


EXIF = Image.Exif()
EXIF[0x0112] = 6
MIXED = [
    encoded("JPEG"),
    encoded("PNG"),
    encoded("JPEG", exif=EXIF),
    encoded("JPEG", "L"),
    encoded("WEBP"),
    encoded("JPEG", progressive=True),
]
WANTED = {
    "random": DecodeImage(size=8, crop="random-resized", flip=0.5),
    "normalized": DecodeImage(size=(5, 7), mean=(0.5,) * 3, std=(0.2,) * 3, dtype=torch.float16, channels_last=True),
    "any size": DecodeImage(flip=0.5),
}


DECODERS = {
    "none": lambda: None,
    "library": lambda: ListDecoder("Pillow", by_pillow, turns=False),
    "refusing library": lambda: ListDecoder("Pillow", refuse, turns=False),
    "wrong sizes": lambda: ListDecoder("Pillow", too_small, turns=False),
    "hardware": lambda: HardwareDecoder(NvJpeg(Library())),
    "hardware without grey": lambda: HardwareDecoder(NvJpeg(Library({2}))),
    "refusing hardware": lambda: HardwareDecoder(NvJpeg(Library({2, 3}))),
    "both": lambda: HardwareDecoder(NvJpeg(Library({3})), instead=ListDecoder("Pillow", by_pillow, turns=False)),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("most", [600, 2**29])
def test_whoever_decodes_them_they_are_what_the_host_makes_of_them(on_cpu, monkeypatch, kind, decoder, most):
    monkeypatch.setattr(decode_images, "BYTES_OF_A_CALL", most)
    options, cpu = {"x": WANTED[kind]}, torch.device("cpu")
    decoder = DECODERS[decoder]()
    made = []
    for images in (HostImages(options), DeviceImages(options, cpu, lambda: decoder)):
        batches = [batch_of(MIXED), batch_of(MIXED[:2])]
        images(batches, lambda: False)
        images.close()
        made.append(batches)
    for one, other in zip(*made, strict=True):
        assert all(map(torch.equal, one.batch["x"], other.batch["x"]))
        assert [image.stride() for image in one.batch["x"]] == [image.stride() for image in other.batch["x"]]


def decode_nothing(decoder, count, form=2):
    """A call of so many images, which the library refuses."""
    targets = destinations(np.zeros(count, np.int64), np.zeros(count), np.zeros(count), 1)
    with pytest.raises(RuntimeError, match="nvjpegDecodeBatched has returned 6"):
        decoder.decode(np.zeros(count), np.zeros(count), targets, form, 0)


def test_one_state_is_made_ready_where_the_number_of_images_or_the_format_changes():
    library = Library({2, 3})
    decoder = NvJpeg(library)
    for number in range(20):
        decode_nothing(decoder, (7, 5)[number // 4 % 2], (2, 3)[number // 2 % 2])
    assert (library.initialized, library.alive) == (10, 2)
    library.wrong = True
    for _ in range(2):  # one that could not be made ready is not used
        with pytest.raises(RuntimeError, match="nvjpegDecodeBatchedInitialize has returned 3"):
            decoder.decode(np.zeros(1), np.zeros(1), np.zeros((1, 8)), 2, 0)
    library.wrong = False
    decode_nothing(decoder, 5, 3)
    assert (library.initialized, library.alive) == (13, 2)
    decoder.close()
    decoder.close()
    assert library.alive == 0


def test_a_decoder_without_a_state_is_given_back():
    library = Library()
    library.nvjpegJpegStateCreate = lambda handle, state: 5
    with pytest.raises(RuntimeError, match="nvjpegJpegStateCreate has returned 5"):
        NvJpeg(library)
    assert library.alive == 0


def test_a_decoder_is_opened_once_in_a_thread_and_closed(on_cpu):
    begun, go_on, library = [], threading.Event(), Library()

    def opened():
        begun.append(threading.current_thread().name)
        assert go_on.wait(10)
        return HardwareDecoder(NvJpeg(library))

    with decoding(opened) as images, ThreadPoolExecutor(2) as threads:
        done = [threads.submit(images, [batch_of(MIXED)], lambda: False) for _ in range(2)]
        time.sleep(0.02)
        assert not any(one.done() for one in done)
        go_on.set()
        for one in done:
            one.result(timeout=20)
    assert begun == ["gdsload-nvjpeg"]
    assert library.calls
    assert library.alive == 0


def test_a_decoder_that_cannot_be_opened_is_an_error_of_each_batch_until_it_can(on_cpu):
    def opened():
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    tries = []
    with decoding(opened) as images:
        while not tries:
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="not yet"):
            images([batch_of(MIXED)], lambda: False)
        images([batch_of(MIXED)], lambda: False)
    assert len(tries) == 3


def test_batches_are_decoded_together(on_cpu):
    library = Library()
    with decoding(lambda: HardwareDecoder(NvJpeg(library))) as images:
        images([batch_of(MIXED), batch_of([]), batch_of(MIXED[1:2]), batch_of(MIXED[2:])], lambda: False)
    assert library.calls == [(3, 3), (2, 2)]  # two in colours and one grey, and one and one


@pytest.mark.parametrize("kind", WANTED)
def test_errors_are_raised_at_the_first_batch_and_zeros_are_in_each(on_cpu, kind):
    bad = [MIXED[0], b"none", MIXED[0][:300], MIXED[1]]
    options = [{"x": WANTED[kind]}, {"x": replace(WANTED[kind], on_error="zeros")}]
    for made in (HostImages, lambda options: DeviceImages(options, torch.device("cpu"), DECODERS["hardware"])):
        raising, going_on = map(made, options)
        with pytest.raises(FormatError, match="a.safetensors: the image of sample 102 in field 'x'") as caught:
            raising([batch_of(MIXED), batch_of([MIXED[0], *bad]), batch_of(bad)], lambda: False)
        assert caught.value.samples == ((102, 104),)
        batches = [batch_of(bad), batch_of(MIXED[:2]), batch_of(bad[1:])]
        going_on(batches, lambda: False)
        for batch, good in zip(batches, ([1, 0, 0, 1], [1, 1], [0, 0, 1]), strict=True):
            assert batch.batch["x.decoded"].tolist() == list(map(bool, good))
            assert [image.any().item() for image in batch.batch["x"]] == list(map(bool, good))
        raising.close()
        going_on.close()


class Counted:
    """A decoder whose pixels are counted, as long as anybody has them; it decodes nothing, so the processors do."""

    name = "counted"

    def __init__(self):
        self.alive = self.most = self.made = 0
        self.lock = threading.Lock()

    def decode(self, looked, numbers, stream):
        pixels = Held(self)
        with self.lock:
            self.most, self.made = max(self.most, self.alive), self.made + 1
        self.during()
        return [pixels]

    def during(self):
        time.sleep(0.001)

    def close(self):
        pass


class Held:
    numbers = ()

    def __init__(self, decoder):
        self.decoder = decoder
        with decoder.lock:
            decoder.alive += 1

    def __del__(self):
        with self.decoder.lock:
            self.decoder.alive -= 1

    def place(self, into):
        pass

    def image(self, number):
        return None


def at_once(count, call):
    """So many threads that make batches."""
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(call) for _ in range(count)]:
            done.result(timeout=20)


def test_the_pixels_of_three_calls_are_in_memory_at_once(on_cpu, monkeypatch):
    monkeypatch.setattr(decode_images, "BYTES_OF_A_CALL", 1200)  # two images
    decoder = Counted()
    with decoding(lambda: decoder) as images:
        at_once(5, lambda: images([batch_of([MIXED[0]] * 5), batch_of([MIXED[0]] * 4)], lambda: False))
    assert decoder.made == 5 * 5
    assert (decoder.most, decoder.alive) == (3, 0)


def test_two_calls_are_in_hardware_at_once_and_no_third(on_cpu):
    library, both = Library(), threading.Barrier(2)
    plain, inside, most = library.nvjpegDecodeBatched, [], []

    def decode(handle, state, *given):
        inside.append(state.value)
        most.append(len(inside))
        both.wait(10)
        assert len(set(inside)) == len(inside)  # a state serves one call at a time
        try:
            return plain(handle, state, *given)
        finally:
            inside.remove(state.value)

    library.nvjpegDecodeBatched = decode
    decoder = HardwareDecoder(NvJpeg(library), lambda: NvJpeg(library))
    with decoding(lambda: decoder) as images:
        at_once(4, lambda: images([batch_of([MIXED[0]] * 3)], lambda: False))
    assert (len(most), max(most), library.alive) == (4, 2, 0)


def test_calls_are_made_one_by_one_where_no_second_decoder_can_be_opened(on_cpu):
    library, tried = Library(), []
    decoder = HardwareDecoder(NvJpeg(library), lambda: tried.append(1))
    with decoding(lambda: decoder) as images:
        at_once(4, lambda: images([batch_of([MIXED[0]] * 3)] * 4, lambda: False))
    assert len(library.calls) == 4
    assert len(tried) <= 1
    assert library.alive == 0


def test_a_decoder_is_free_again_after_an_error(on_cpu):
    library = Library()
    library.nvjpegDecodeBatched = raising
    with decoding(lambda: HardwareDecoder(NvJpeg(library))) as images:
        for _ in range(2):
            with pytest.raises(MemoryError, match="none left"):
                images([batch_of(MIXED[:1])], lambda: False)


def raising(*given):
    raise MemoryError("none left")
