"""Whisper checkpoints of CTranslate2 (model.bin) as hub folders: vivace convert tiny.en/ out/

model.bin, little-endian: u32 version, name of the specification, u32 its revision, u32 count; then for each variable
its name, u8 rank, u32 dims, u8 dtype, u32 bytes, data; then u32 count of aliases, each two names. A name is a u16
length and that many bytes, the last of them 0. int8 matrices have a scale a row in NAME_scale: weight = code / scale.
"""
from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path

import numpy as np

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError, InvalidShapeError, NotFoundError, UnsupportedError

VERSIONS = (4, 5, 6)
_DTYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "bf16"}
_MAX_RANK = 4
_MAX_ENTRIES = 1 << 16  # variables, and aliases; the largest Whisper has some 1,500


def file_of(source: Path) -> Path | None:
    """The model.bin that `source` is or holds; None if it is something else."""
    file = source / "model.bin" if source.is_dir() else source
    if source.is_dir() and (source / "model.safetensors").exists():
        return None
    return file if file.name == "model.bin" and file.exists() else None


class _Reader:
    def __init__(self, file: Path, data):
        self.file, self.data, self.at = file, data, 0

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.at:
            raise CorruptDataError(f"{self.file}: {what}: {size} bytes wanted at {self.at}, the file ends after {len(self.data) - self.at}")
        self.at += size
        return self.data[self.at - size:self.at]

    def number(self, form: str, what: str) -> int:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))[0]

    def count(self, what: str) -> int:
        n = self.number("I", f"count of {what}")
        if n > _MAX_ENTRIES:
            raise CorruptDataError(f"{self.file}: {n} {what}, at most {_MAX_ENTRIES} are read")
        return n

    def name(self, what: str) -> str:
        raw = self.take(self.number("H", what), what)
        if not raw.endswith(b"\0") or not raw[:-1].isascii() or not raw[:-1].decode().isprintable():
            raise CorruptDataError(f"{self.file}: {what}: wanted printable text that ends in 0, got {raw[:40]!r}")
        return raw[:-1].decode()


def read(file: Path) -> dict[str, np.ndarray]:
    """Variables by name, aliases included; matrices of int8 as f32, bf16 as f32. Views of the file where it can be."""
    with open(files.open_regular(file), "rb") as f:
        head = f.read(4)
        if head[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise UnsupportedError(f"{file}: this is a pickle, and loading one runs whatever code it holds; export the model to safetensors where you trust it, then convert that")
        if len(head) < 4:
            raise CorruptDataError(f"{file}: {len(head)} bytes, no CTranslate2 model")
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    r = _Reader(file, data)
    version = r.number("I", "version")
    if version not in VERSIONS:
        raise UnsupportedError(f"{file}: wanted version {', '.join(map(str, VERSIONS))} of CTranslate2's format, got {version}")
    spec = r.name("specification")
    if spec != "WhisperSpec":
        raise UnsupportedError(f"{file}: wanted a WhisperSpec model, got {spec!r}")
    r.number("I", "revision")
    out = {}
    for _ in range(r.count("variables")):
        name = r.name("a variable's name")
        rank = r.number("B", f"{name}: rank")
        if rank > _MAX_RANK:
            raise CorruptDataError(f"{file}: {name}: rank {rank}, at most {_MAX_RANK} is read")
        shape = tuple(r.number("I", f"{name}: dims") for _ in range(rank))
        kind = _DTYPES.get(code := r.number("B", f"{name}: dtype"))
        if kind is None:
            raise CorruptDataError(f"{file}: {name}: dtype {code} is none of 0 to {max(_DTYPES)}")
        size, wanted = r.number("I", f"{name}: bytes"), np.dtype("<u2" if kind == "bf16" else kind).itemsize
        for n in shape:
            wanted *= n
        if size != wanted:
            raise CorruptDataError(f"{file}: {name}: {list(shape)} of {kind} is {wanted} bytes, the file says {size}")
        if name in out:
            raise CorruptDataError(f"{file}: {name} is there twice")
        raw = np.frombuffer(r.take(size, name), "<u2" if kind == "bf16" else kind).reshape(shape)
        out[name] = (raw.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else raw
    for _ in range(r.count("aliases")):
        alias, name = r.name("an alias"), r.name("an alias's target")
        if name not in out or alias in out:
            raise CorruptDataError(f"{file}: alias {alias} of {name}: wanted a new name for a variable that is there")
        out[alias] = out[name]
    if r.at != len(data):
        raise CorruptDataError(f"{file}: {len(data) - r.at} bytes follow the last alias")
    return out


class _Variables:
    def __init__(self, file: Path, values: dict):
        self.file, self.values = file, values

    def get(self, name: str, shape=None, rank: int | None = None) -> np.ndarray:
        if name not in self.values:
            raise NotFoundError(f"{self.file}: {name} is missing; the checkpoint is incomplete or of another family")
        w = self.values[name]
        if w.dtype == np.int8 and w.ndim == 2:
            scale = self.get(name + "_scale", (w.shape[0],))
            if not (np.isfinite(scale) & (scale != 0)).all():
                raise CorruptDataError(f"{self.file}: {name}_scale: wanted finite scales that are not 0")
            w = w.astype(np.float32) / scale[:, None]
        if w.dtype.kind != "f" and w.ndim:
            raise UnsupportedError(f"{self.file}: {name}: a weight of {w.dtype} is not converted")
        if shape is not None and w.shape != tuple(shape):
            raise InvalidShapeError(f"{self.file}: {name}: wanted {list(shape)}, got {list(w.shape)}")
        if rank is not None and (w.ndim != rank or 0 in w.shape):
            raise InvalidShapeError(f"{self.file}: {name}: wanted {rank} axes, none of them empty, got {list(w.shape)}")
        return w

    def scalar(self, name: str) -> int:
        value = float(self.get(name, ()))
        if not 0 <= value < 1 << 31:
            raise CorruptDataError(f"{self.file}: {name}: wanted 0 to 2^31 - 1, got {value}")
        return int(value)

    def layers(self, side: str) -> int:
        n = 0
        while f"{side}/layer_{n}/self_attention/linear_0/weight" in self.values:
            n += 1
        return n


def _norm(v, d, ours, theirs) -> dict:
    return {f"{ours}.weight": v.get(f"{theirs}/gamma", (d,)), f"{ours}.bias": v.get(f"{theirs}/beta", (d,))}


def _linear(v, n, k, ours, theirs) -> dict:
    return {f"{ours}.weight": v.get(f"{theirs}/weight", (n, k)), f"{ours}.bias": v.get(f"{theirs}/bias", (n,))}


def _joined(v, d, parts, ours, theirs) -> dict:
    """Projections that CTranslate2 keeps in one matrix. Keys have no bias: theirs is zeros."""
    w, b = v.get(f"{theirs}/weight", (len(parts) * d, d)), v.get(f"{theirs}/bias", (len(parts) * d,))
    out = {}
    for i, part in enumerate(parts):
        out[f"{ours}.{part}_proj.weight"] = w[i * d:(i + 1) * d]
        if part != "k":
            out[f"{ours}.{part}_proj.bias"] = b[i * d:(i + 1) * d]
        elif np.any(b[i * d:(i + 1) * d]):
            raise UnsupportedError(f"{v.file}: {theirs}/bias: keys with a bias are no Whisper's")
    return out


def _layer(v, d, inner, ours, theirs, cross) -> dict:
    out = _norm(v, d, f"{ours}.self_attn_layer_norm", f"{theirs}/self_attention/layer_norm")
    out |= _joined(v, d, "qkv", f"{ours}.self_attn", f"{theirs}/self_attention/linear_0")
    out |= _linear(v, d, d, f"{ours}.self_attn.out_proj", f"{theirs}/self_attention/linear_1")
    if cross:
        out |= _norm(v, d, f"{ours}.encoder_attn_layer_norm", f"{theirs}/attention/layer_norm")
        out |= _linear(v, d, d, f"{ours}.encoder_attn.q_proj", f"{theirs}/attention/linear_0")
        out |= _joined(v, d, "kv", f"{ours}.encoder_attn", f"{theirs}/attention/linear_1")
        out |= _linear(v, d, d, f"{ours}.encoder_attn.out_proj", f"{theirs}/attention/linear_2")
    out |= _norm(v, d, f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    return out | _linear(v, inner, d, f"{ours}.fc1", f"{theirs}/ffn/linear_0") | _linear(v, d, inner, f"{ours}.fc2", f"{theirs}/ffn/linear_1")


def hub_form(v: _Variables) -> tuple[dict, dict]:
    """(config.json, tensors under transformers' names)."""
    embed, source, target = (v.get(name, rank=2) for name in ("decoder/embeddings/weight", "encoder/position_encodings/encodings", "decoder/position_encodings/encodings"))
    vocab, d = embed.shape
    conv, inner = v.get("encoder/conv1/weight", rank=3), v.get("encoder/layer_0/ffn/linear_0/weight", rank=2).shape[0]
    mels = conv.shape[1]
    out = {"model.encoder.conv1.weight": v.get("encoder/conv1/weight", (d, mels, 3)), "model.encoder.conv1.bias": v.get("encoder/conv1/bias", (d,)),
           "model.encoder.conv2.weight": v.get("encoder/conv2/weight", (d, d, 3)), "model.encoder.conv2.bias": v.get("encoder/conv2/bias", (d,)),
           "model.encoder.embed_positions.weight": v.get("encoder/position_encodings/encodings", (source.shape[0], d)),
           "model.decoder.embed_tokens.weight": embed, "model.decoder.embed_positions.weight": v.get("decoder/position_encodings/encodings", (target.shape[0], d))}
    for side in ("encoder", "decoder"):
        for i in range(v.layers(side)):
            out |= _layer(v, d, inner, f"model.{side}.layers.{i}", f"{side}/layer_{i}", cross=side == "decoder")
        out |= _norm(v, d, f"model.{side}.layer_norm", f"{side}/layer_norm")
    tied = np.shares_memory(v.values.get("decoder/projection/weight", embed), v.values["decoder/embeddings/weight"])
    if not tied:
        out["proj_out.weight"] = v.get("decoder/projection/weight", (vocab, d))
    english = vocab == 51864  # the vocabulary without languages; the ids after the text tokens move with it
    eot = 50256 if english else 50257
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": vocab, "d_model": d, "num_mel_bins": mels,
              "encoder_layers": v.layers("encoder"), "decoder_layers": v.layers("decoder"), "encoder_attention_heads": v.scalar("encoder/num_heads"),
              "decoder_attention_heads": v.scalar("decoder/num_heads"), "encoder_ffn_dim": inner, "decoder_ffn_dim": inner, "activation_function": "gelu",
              "max_source_positions": source.shape[0], "max_target_positions": target.shape[0], "scale_embedding": "decoder/scale_embeddings" in v.values and v.scalar("decoder/scale_embeddings") != 0,
              "tie_word_embeddings": tied, "bos_token_id": eot, "eos_token_id": eot, "pad_token_id": eot, "decoder_start_token_id": eot + 1}
    return config, out


def convert(file: Path, target: Path, dtype: str) -> dict:
    """Writes the hub folder `target`: config.json, model.safetensors, generation_config.json and the tokenizer."""
    from vivace.convert import write_safetensors

    if target.suffix == ".gguf":
        raise UnsupportedError(f"{file}: Whisper has no form in GGUF that is written here; name a folder")
    if dtype not in ("auto", "f32", "f16", "bf16"):
        raise InvalidArgumentError(f"dtype: wanted one of f32, f16, bf16 for safetensors, got {dtype!r}")
    config, tensors = hub_form(_Variables(file, read(file)))
    beside = files.read_own(file.parent, "config.json")
    extra = {} if beside is None else files.json_object(files.text_of(beside, file.with_name("config.json")), file.with_name("config.json"))
    tokenizer = files.read_own(file.parent, "tokenizer.json")
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")}
    names = {"alignment_heads": "alignment_heads", "suppress_ids": "suppress_tokens", "suppress_ids_begin": "begin_suppress_tokens"}
    generation |= {hub: extra[own] for own, hub in names.items() if own in extra}
    with files.new_folder(target) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
        if tokenizer is not None:
            (folder / "tokenizer.json").write_bytes(tokenizer)
        return write_safetensors(folder / "model.safetensors", tensors, "f16" if dtype == "auto" else dtype)
