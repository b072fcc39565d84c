"""The names of shape annotations, checked by jaxtyping and beartype in tests only.

``Float[Tensor, "T"]`` says dtype family and shape. jaxtyping is a development extra: without it the annotation
is the plain array type.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Array:
            def __class_getitem__(cls, array_and_shape: tuple[type, str]) -> type:
                return array_and_shape[0]

        Bool = Float = Int = _Array

__all__ = ["Bool", "Float", "Int"]
