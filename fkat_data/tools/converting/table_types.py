"""Choose the encoding of an Arrow column from its type and its metadata."""

import json
from collections.abc import Mapping
from typing import Any

#: Arrow type of numbers -> dtype
NUMBERS = {
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
_TEXTS = ("string", "large_string", "string_view")
_BYTES = ("binary", "large_binary", "binary_view")
#: The fields of the struct in which Hugging Face datasets store an image or a recording.
_FILE_FIELDS = ["bytes", "path"]
_EXTENSIONS = {"arrow.json": "json", "arrow.uuid": "str"}


def encodings_of_schema(types: Any, schema: Any) -> dict[str, str]:
    """Return an encoding for each field of a schema.

    Args:
        types: The module ``pyarrow.types``.
        schema: The schema. Its metadata say which files of a Hugging Face dataset are images.
    """
    features = _hugging_face_features(schema.metadata or {})
    found: dict[str, str] = {}
    for field in schema:
        extension = _EXTENSIONS.get(extension_name(field))
        encoding = extension or _encoding_of(types, stored_type(field.type))
        is_image = features.get(field.name, "Image") == "Image"
        found[field.name] = "bytes" if encoding == "jpeg" and not is_image else encoding
    return found


def stored_type(kind: Any) -> Any:
    """Return the type under dictionaries and extensions, such as categoricals and periods."""
    while True:
        if hasattr(kind, "storage_type"):
            kind = kind.storage_type
        elif hasattr(kind, "index_type"):
            kind = kind.value_type
        else:
            return kind


def peeled(types: Any, kind: Any) -> tuple[list[int], Any]:
    """Return the shape of nested lists of fixed size, and the type of their elements."""
    shape: list[int] = []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return shape, kind


def is_text(kind: Any) -> bool:
    """Return whether a type is one of those of strings."""
    return str(kind) in _TEXTS


def is_file(types: Any, kind: Any) -> bool:
    """Return whether a type is the struct in which Hugging Face datasets store an image or a recording."""
    return types.is_struct(kind) and sorted(field.name for field in kind) == _FILE_FIELDS


def _encoding_of(types: Any, kind: Any) -> str:
    tests: dict[str, bool] = {
        "str": is_text(kind) or types.is_temporal(kind),
        "bytes": str(kind) in _BYTES or types.is_fixed_size_binary(kind),
        "str_decimal": types.is_decimal(kind),
        "jpeg": is_file(types, kind),
    }
    found = next((encoding for encoding, is_true in tests.items() if is_true), None)
    return found or _encoding_of_numbers(types, kind)


def _encoding_of_numbers(types: Any, kind: Any) -> str:
    if str(kind) in NUMBERS:
        return "int" if str(kind) == "int64" else NUMBERS[str(kind)]
    shape, leaf = peeled(types, kind)
    if shape and all(shape) and str(leaf) in NUMBERS:
        return f"ndarray:{NUMBERS[str(leaf)]}:{','.join(map(str, shape))}"
    if (types.is_list(kind) or types.is_large_list(kind)) and str(kind.value_type) in NUMBERS:
        return f"ndarray:{NUMBERS[str(kind.value_type)]}"
    return "json"


def extension_name(field: Any) -> str:
    """Return the name of a field's extension type; "" if it has none."""
    # A version of pyarrow that does not know the extension leaves its name in the field's metadata.
    metadata: dict[bytes, bytes] = field.metadata or {}
    in_metadata = metadata.get(b"ARROW:extension:name", b"").decode(errors="replace")
    return str(getattr(field.type, "extension_name", "")) or in_metadata


def _hugging_face_features(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the kind of each feature that a Hugging Face dataset's metadata name."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {name: str(feature["_type"]) for name, feature in features.items() if "_type" in feature}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}  # no such dataset, or one of an unknown version
