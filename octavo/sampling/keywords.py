"""Structs whose keywords people write by hand."""

from __future__ import annotations

from typing import Any

from msgspec import StructMeta

from octavo.errors import did_you_mean


class NamedFields(StructMeta):
    """Metaclass of structs that say which field an unknown keyword may mean."""

    def __call__(cls, *values: Any, **fields: Any) -> Any:
        """A new struct. TypeError, with the nearest name, for a keyword that no field has."""
        try:
            return super().__call__(*values, **fields)
        except TypeError:
            unknown = [name for name in fields if name not in cls.__struct_fields__]
            if not unknown:
                raise
        raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}{did_you_mean(unknown[0], cls.__struct_fields__)}")
