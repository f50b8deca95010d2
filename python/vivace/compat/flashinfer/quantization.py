"""FlashInfer's names of quantization: packed bits of masks, and NVFP4 of keys and values."""
from vivace.compat.flashinfer.call import packbits, segment_packbits
from vivace.compat.flashinfer.fp4 import nvfp4_kv_dequantize, nvfp4_kv_quantize

__all__ = ["nvfp4_kv_dequantize", "nvfp4_kv_quantize", "packbits", "segment_packbits"]
