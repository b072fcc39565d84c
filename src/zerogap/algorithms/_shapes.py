"""The names of shape annotations, checked by jaxtyping and beartype in tests only.

``Float[Tensor, "T"]`` says dtype family and shape. jaxtyping is a development extra: without it the annotation
is the plain array type. ``Tensor`` is torch's for type checkers and anything with a shape when the code runs, since this
room loads without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor
else:
    Tensor = Any
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Array:
            def __class_getitem__(cls, array_and_shape: tuple[type, str]) -> type:
                return array_and_shape[0]

        Bool = Float = Int = _Array

__all__ = ["Bool", "Float", "Int", "Tensor"]
