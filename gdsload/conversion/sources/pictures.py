"""Encoded images to fields: decoded by Pillow, or kept. They are not trusted: formats and pixels are bounded."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, FileSource, SourceFiles
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.opened_images import (
    ONE_CHANNEL,
    FirstPictures,
    opened_image,
    palettes_agree,
    upright,
    what_pillow_says,
)
from gdsload.errors import FormatError, GdsloadError, OptionError
from gdsload.shards.encode import EncodedImage
from gdsload.shards.format.image_header import image_codec, read_image_header
from gdsload.shards.pictures import Levels, channels_first, levels, of_8_bits, what_is_lost

_LOOKED_AT, _PART_BYTES = 64, 2**26

Mode = Literal["auto", "RGB", "RGBA", "L", "keep"]
Resize = Literal["none", "squash", "crop"]


class ImageOptions(TypedDict, total=False):
    """The options that all sources of images have; `ImageForm` says what they mean."""

    size: int | None
    resize: Resize | None
    mode: Mode | Mapping[str, Mode]
    keep_encoded: bool


class ImageFileOptions(FileOptions, ImageOptions, total=False):
    """The options of sources of files with images."""


@dataclass(frozen=True, slots=True)
class ImageForm:
    """The form of images in the result; images are turned as their EXIF data say: see `opened_images.upright`.

    Attributes:
        mode: their channels: ``"RGB"``, ``"RGBA"``, ``"L"`` (grey), or ``"keep"``: each as it is, palettes as indices,
            and numbers that end before 255 as the file has them. ``"auto"``, the default: one channel, palettes as
            indices, if all of the first pictures of a field have but one, and equal palettes, else RGB. Or a mapping
            from fields to these, in which ``""`` stands for all others.
        size: height and width. None: as they are.
        resize: how it gets there: ``"crop"``, the default, by scaling and cutting off what is too much on both sides
            alike, ``"squash"`` by scaling each side, ``"none"`` not at all: an image of another size is an error.
        keep_encoded: leave it as the file is that it comes in: a JPEG, PNG or WebP, with width, height and orientation
            in fields beside it.
        one_channel: of the fields in mode ``"auto"`` those whose first pictures have but one channel, with the colours
            that its values stand for; see `FirstPictures.one_channel`.
        notes: notes for users on the first pictures.
        seen: if not None, pictures are not made into anything, and only noted here.

    Raises:
        OptionError: if that cannot be done.
    """

    mode: Mode | Mapping[str, Mode] = "auto"
    size: int | None = None
    resize: Resize | None = None
    keep_encoded: bool = False
    one_channel: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seen: FirstPictures | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        modes = dict(self.mode) if isinstance(self.mode, Mapping) else {"": self.mode}
        if self.resize is None:
            object.__setattr__(self, "resize", "none" if self.size is None else "crop")
        if self.size is not None and (type(self.size) is not int or not 1 <= self.size <= 65_535):
            raise OptionError(f"is {self.size!r}, no number of pixels from 1 to 65535", option="size")
        if self.resize != "none" and self.size is None:
            raise OptionError(f"is {self.resize!r}, but to which size?", option="resize", remedy="Pass `size=`, too.")
        if self.keep_encoded and (self.size is not None or set(modes.values()) - {"auto", "keep"}):
            raise OptionError(
                "leaves images as they are, so they get no other size or mode",
                option="keep_encoded",
                remedy="Leave one of them out.",
            )

    @classmethod
    def of(cls, options: ImageFileOptions) -> ImageForm:
        """The form that options of a source name."""
        given = {name: options[name] for name in ImageOptions.__annotations__ if name in options}  # type: ignore[literal-required]
        return cls(**given)

    def mode_of(self, name: str) -> str:
        """The mode of a field's images; ``"one"``: whatever has one channel."""
        found = self._asked(name)
        return found if found != "auto" else "one" if name in self.one_channel else "RGB"

    def _asked(self, name: str) -> str:
        modes = self.mode if isinstance(self.mode, Mapping) else {"": self.mode}
        return modes.get(name, modes.get("", "auto"))

    def decided(self, seen: FirstPictures) -> ImageForm:
        """The form of images whose first ones are known."""
        found = replace(self, one_channel=seen.one_channel(), seen=None)
        modes = {name: found.mode_of(name) for name in seen.fields if self._asked(name) == "auto"}
        return replace(found, notes=seen.notes(modes))

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on."""
        return {
            "size": self.size, "resize": self.resize, "mode": self.mode, "keep_encoded": self.keep_encoded,
            "one_channel": sorted(self.one_channel),
        }  # fmt: skip

    def fields(self, name: str, content: bytes | IO[bytes], where: str) -> dict[str, Any]:
        """The fields of a sample that an encoded image becomes.

        Args:
            name: the field.
            content: its bytes, or an open file of them.
            where: a name for it, for the error.

        Returns:
            The field: its pixels as `decode_image` has them; or the bytes themselves and, as ``NAME.width``,
            ``NAME.height`` (int32) and ``NAME.orientation`` (uint8, as EXIF has it), what its header says.

        Raises:
            FormatError: if it is damaged, or cannot be kept.
            OptionError: if Pillow is missing, where it is needed.
        """
        if self.seen is not None:
            with opened_image(content, where) as image:
                self.seen.add(name, image)
            return {}
        if not self.keep_encoded:
            return {name: decode_image(content, self, where, name)}
        return _kept(name, content if isinstance(content, bytes) else content.read(), where)

    def picture(self, name: str, image: Any, where: str) -> dict[str, Any]:
        """The fields of a sample that a Pillow image of no file becomes; to be kept, it is encoded as PNG."""
        if self.seen is not None:
            self.seen.add(name, image)
            return {}
        if not self.keep_encoded:
            return {name: image_array(image, self, where, name)}
        stream = io.BytesIO()
        try:
            image.save(stream, "PNG")
        except OSError as error:
            raise FormatError(f"the image cannot be made a PNG: {error}", file=where) from None
        return _kept(name, stream.getvalue(), where)


def put(found: dict[str, Any], fields: Mapping[str, Any], where: str) -> None:
    """Add what `ImageForm.fields` made to a sample.

    Raises:
        FormatError: if the sample has such a field already.
    """
    for name in fields:
        if name in found:
            raise FormatError(f"the sample has a field {name!r} already", file=where, remedy="Rename one of the two.")
    found.update(fields)


def _kept(name: str, content: bytes, where: str) -> dict[str, Any]:
    if image_codec(content) is None:
        raise FormatError(
            f"the image is no JPEG, PNG or WebP (it begins with {content[:12]!r}), so it cannot be kept encoded",
            file=where,
            remedy="Make it one of these, or decode images: leave `keep_encoded` out.",
        )
    try:
        header = read_image_header(content)
    except FormatError as error:
        raise error.within(where) from None
    return {
        name: EncodedImage(content),
        f"{name}.width": np.int32(header.width),
        f"{name}.height": np.int32(header.height),
        f"{name}.orientation": np.uint8(header.orientation),
    }


class ImageSource(FileSource):
    """Base of sources of files with images, whose form may depend on the first of them.

    Attributes:
        look: the form of images, as the options have it.
    """

    ways_out = (
        "Pictures get one size with `size=224`, say, by scaling and cutting the middle out; or keep them "
        "as the files that they are: `keep_encoded=True`."
    )
    """The remedy for pictures of several sizes."""

    look: ImageForm
    _known_form: ImageForm | None = None

    def __init__(self, path: str, **options: Unpack[ImageFileOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.look = ImageForm.of(options)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.form.to_json()}

    def parts(self, target_bytes: int) -> list[Part]:
        raise NotImplementedError

    def read(self, part: Part) -> Iterator[Item]:
        raise NotImplementedError

    @property
    def form(self) -> ImageForm:
        """The form of images in the result, with the channels of the first pictures if the options leave them open.

        It is decided once, before workers get the source.
        """
        if self._known_form is None:
            self._known_form = self.look if self.look.keep_encoded or self.look.seen else self._looked_at()
        return self._known_form

    def named_modes(self) -> Mapping[str, Mode]:
        """The modes that the source itself names for fields; they count where the user names none."""
        return {}

    def bytes_in_files(self) -> float | None:
        """The bytes of its files that a sample takes, where parts do not know their number of samples; else None."""
        return None

    def _looked_at(self) -> ImageForm:
        seen, look = FirstPictures(), self.look
        given = look.mode if isinstance(look.mode, Mapping) else {"": look.mode}
        if given.get("", "auto") == "auto" and (named := self.named_modes()):
            look = replace(look, mode={**named, "": "auto", **given})
        looking = copy.copy(self)
        looking.__dict__.update(look=replace(look, seen=seen), _known_form=None)
        for item in islice(looking.first_items(), _LOOKED_AT):
            try:
                item.make()
            except OptionError:
                raise
            except Exception:  # noqa: S112 - reported when its turn comes
                continue
        return look.decided(seen)

    @property
    def picture_notes(self) -> tuple[str, ...]:
        """Notes for users on the first images."""
        return () if self._known_form is None else self._known_form.notes

    def first_items(self) -> Iterator[Item]:
        """Items whose images tell what those of the others will be."""
        try:
            for part in self.parts(_PART_BYTES):
                yield from self.read(part)
        except OptionError:
            raise
        except GdsloadError:  # reported when its turn comes
            return


def decode_image(content: bytes | IO[bytes], look: ImageForm, where: str, name: str = "") -> NDArray[np.uint8]:
    """Decode an image.

    Args:
        content: its bytes, or where they are.
        look: what it is made into.
        where: what it is called, for the error.
        name: the field that it is for.

    Returns:
        Its pixels, uint8 ``[channels, height, width]``.

    Raises:
        FormatError: if it is damaged, has more pixels than Pillow's `MAX_IMAGE_PIXELS`, or more bits than 8.
        OptionError: if Pillow is missing.
    """
    images = need("PIL.Image", file=where)
    try:
        # Pillow only warns of an image of up to twice as many pixels as it allows.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with opened_image(content, where) as image:
                return image_array(image, look, where, name)
    except (FormatError, OptionError, MemoryError):
        raise
    except Exception as error:  # readers of damaged images raise anything
        raise FormatError(f"the image cannot be decoded: {what_pillow_says(error)}", file=where) from None


def image_array(image: Any, look: ImageForm, where: str, name: str = "") -> NDArray[np.uint8]:
    """The pixels of a Pillow image, uint8 ``[channels, height, width]``.

    Raises:
        FormatError: if it has more than that in it, or another size, or more channels, than it must have.
    """
    if lost := what_is_lost(image):
        pages = getattr(image, "n_frames", 1) > 1
        kept = " Or keep the files as they are: `keep_encoded=True`." if image.format == "PNG" and not pages else ""
        remedy = f"Pass a torch dataset that returns arrays: {lost.array} has all.{kept}"
        raise FormatError(lost.what, file=where, remedy=remedy)
    numbers = levels(image)
    image = _channels(upright(image), numbers, look, name, where)
    if look.size is not None and image.size != (look.size, look.size):
        exact = image.mode == "P" or (numbers != Levels() and look.mode_of(name) == "keep")
        image = _resized(image, look, look.size, where, mixed=not exact)
    return channels_first(image)


def _channels(image: Any, numbers: Levels, look: ImageForm, name: str, where: str) -> Any:
    mode = look.mode_of(name)
    if mode == "one":
        _check_one(image, numbers, look.one_channel[name], name, where)
        mode = "keep"
    if mode == "keep":
        return of_8_bits(image) if numbers == Levels() else numbers.restored(image)
    return image if image.mode == mode else image.convert(mode)


def _check_one(image: Any, numbers: Levels, palette: bytes, name: str, where: str) -> None:
    """Refuse an image whose values do not mean what those of the first pictures do, or may mean two things."""
    if image.mode in ONE_CHANNEL and palettes_agree(image, palette) and numbers == Levels():
        return
    has = f"mode {image.mode}, numbers from 0 to {numbers.top}{' where 0 is white' if numbers.inverted else ''}"
    raise FormatError(
        f"the image does not go with the first pictures of field {name!r}, of one channel: it has {has}, or another "
        "palette",
        file=where,
        remedy=f"Say what all are to be: `mode={{{name!r}: 'RGB'}}` or 'L'; or 'keep', which keeps values as stored.",
    )


def _resized(image: Any, look: ImageForm, size: int, where: str, *, mixed: bool) -> Any:
    if look.resize == "none":
        raise FormatError(
            f"the image has {image.height} × {image.width} pixels, not {size} × {size}",
            file=where,
            remedy='Leave `resize="none"` out, or pass `resize="squash"`.',
        )
    # Indices of a palette, and numbers that may be classes, must not be mixed.
    by = need("PIL.Image").Resampling
    by = by.BILINEAR if mixed else by.NEAREST
    if look.resize == "squash":
        return image.resize((size, size), by)
    return need("PIL.ImageOps").fit(image, (size, size), by)
