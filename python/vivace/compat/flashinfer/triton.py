"""FlashInfer's folder of this name: its states made one are those of cascade."""
from vivace.compat.flashinfer import cascade  # noqa: F401
