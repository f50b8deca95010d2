"""vivace convert from CTranslate2: a tiny Whisper written here, its tensors where transformers looks for them, and every refusal."""
import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from vivace.convert import convert
from vivace.ct2 import read

D, INNER, MELS, VOCAB, SOURCE, TARGET = 8, 16, 5, 40, 12, 6
CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def name(text):
    raw = text.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(key, w, code=None):
    w = np.asarray(w)
    return name(key) + struct.pack(f"<B{w.ndim}I", w.ndim, *w.shape) + struct.pack("<BI", CODES[w.dtype.name] if code is None else code, w.nbytes) + w.tobytes()


def whisper(seed=0) -> dict:
    rng = np.random.default_rng(seed)
    r = lambda *s: rng.standard_normal(s).astype(np.float16)  # noqa: E731
    out = {"encoder/conv1/weight": r(D, MELS, 3), "encoder/conv1/bias": r(D), "encoder/conv2/weight": r(D, D, 3), "encoder/conv2/bias": r(D),
           "encoder/position_encodings/encodings": r(SOURCE, D), "decoder/position_encodings/encodings": r(TARGET, D), "decoder/embeddings/weight": r(VOCAB, D),
           "encoder/num_heads": np.int16(2), "decoder/num_heads": np.int16(2), "decoder/scale_embeddings": np.int8(0)}

    def norm(key):
        out[f"{key}/gamma"], out[f"{key}/beta"] = r(D), r(D)

    def linear(key, n, k, key_rows=None):
        out[f"{key}/weight"], out[f"{key}/bias"] = r(n, k), r(n)
        if key_rows is not None:
            out[f"{key}/bias"][key_rows:key_rows + D] = 0  # keys have none

    for side in ("encoder", "decoder"):
        norm(f"{side}/layer_norm")
        at = f"{side}/layer_0"
        norm(f"{at}/self_attention/layer_norm")
        linear(f"{at}/self_attention/linear_0", 3 * D, D, D)
        linear(f"{at}/self_attention/linear_1", D, D)
        if side == "decoder":
            norm(f"{at}/attention/layer_norm")
            linear(f"{at}/attention/linear_0", D, D)
            linear(f"{at}/attention/linear_1", 2 * D, D, 0)
            linear(f"{at}/attention/linear_2", D, D)
        norm(f"{at}/ffn/layer_norm")
        linear(f"{at}/ffn/linear_0", INNER, D)
        linear(f"{at}/ffn/linear_1", D, INNER)
    return out


def model_bin(variables, aliases=(("decoder/projection/weight", "decoder/embeddings/weight"),), version=6, spec="WhisperSpec"):
    body = b"".join(variable(k, w) for k, w in variables.items())
    return (struct.pack("<I", version) + name(spec) + struct.pack("<II", 3, len(variables)) + body
            + struct.pack("<I", len(aliases)) + b"".join(name(a) + name(b) for a, b in aliases))


def folder(tmp_path, data):
    source = tmp_path / "ct2"
    source.mkdir(exist_ok=True)
    (source / "model.bin").write_bytes(data)
    return source


def test_every_tensor_arrives_under_its_hub_name(tmp_path):
    v = whisper()
    source = folder(tmp_path, model_bin(v))
    (source / "config.json").write_text('{"alignment_heads": [[0, 1]], "suppress_ids": [1, 2]}')
    (source / "tokenizer.json").write_text("{}")
    facts = convert(source, tmp_path / "hub")
    t = load_file(tmp_path / "hub" / "model.safetensors")
    assert facts["tensors"] == len(t) == 7 + 2 * 2 + 15 + 24
    qkv, kv = v["encoder/layer_0/self_attention/linear_0/weight"], v["decoder/layer_0/attention/linear_1/weight"]
    for key, want in {
        "model.encoder.conv1.weight": v["encoder/conv1/weight"], "model.decoder.embed_tokens.weight": v["decoder/embeddings/weight"],
        "model.encoder.layers.0.self_attn.q_proj.weight": qkv[:D], "model.encoder.layers.0.self_attn.k_proj.weight": qkv[D:2 * D],
        "model.encoder.layers.0.self_attn.v_proj.weight": qkv[2 * D:], "model.encoder.layers.0.self_attn.v_proj.bias": v["encoder/layer_0/self_attention/linear_0/bias"][2 * D:],
        "model.decoder.layers.0.encoder_attn.k_proj.weight": kv[:D], "model.decoder.layers.0.encoder_attn.v_proj.weight": kv[D:],
        "model.decoder.layers.0.encoder_attn_layer_norm.weight": v["decoder/layer_0/attention/layer_norm/gamma"],
        "model.decoder.layers.0.fc2.weight": v["decoder/layer_0/ffn/linear_1/weight"], "model.decoder.layer_norm.bias": v["decoder/layer_norm/beta"],
    }.items():
        np.testing.assert_array_equal(t[key].astype(np.float32), want.astype(np.float32), err_msg=key)
    assert not any(k.endswith("k_proj.bias") or k == "proj_out.weight" for k in t)
    config = json.loads((tmp_path / "hub/config.json").read_text())
    assert {k: config[k] for k in ("d_model", "num_mel_bins", "encoder_layers", "decoder_layers", "vocab_size", "encoder_ffn_dim", "tie_word_embeddings")} == dict(
        d_model=D, num_mel_bins=MELS, encoder_layers=1, decoder_layers=1, vocab_size=VOCAB, encoder_ffn_dim=INNER, tie_word_embeddings=True)
    generation = json.loads((tmp_path / "hub/generation_config.json").read_text())
    assert generation["alignment_heads"] == [[0, 1]] and generation["suppress_tokens"] == [1, 2]
    assert (tmp_path / "hub/tokenizer.json").read_text() == "{}"


def test_int8_matrices_are_widened_by_their_rows_scales(tmp_path):
    v = whisper()
    key = "decoder/layer_0/ffn/linear_0/weight"
    codes, scale = np.arange(-64, 64, dtype=np.int8).reshape(INNER, D), np.linspace(20, 90, INNER, dtype=np.float32)
    v[key], v[key + "_scale"] = codes, scale
    convert(folder(tmp_path, model_bin(v)), tmp_path / "hub", dtype="f32")
    got = load_file(tmp_path / "hub/model.safetensors")["model.decoder.layers.0.fc1.weight"]
    np.testing.assert_array_equal(got, codes.astype(np.float32) / scale[:, None])


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = model_bin(whisper())
    for cut in [*range(0, 200), *range(200, len(whole), 97)]:
        source = folder(tmp_path, whole[:cut])
        with pytest.raises(vivace.CorruptDataError, match="model.bin"):
            read(source / "model.bin")


@pytest.mark.parametrize("change,error,match", [
    (lambda v: v.pop("encoder/conv2/bias"), vivace.NotFoundError, "encoder/conv2/bias is missing"),
    (lambda v: v.update({"encoder/conv2/bias": np.zeros(D + 1, np.float32)}), vivace.InvalidShapeError, r"encoder/conv2/bias: wanted \[8\], got \[9\]"),
    (lambda v: v.update({"encoder/conv2/bias": np.zeros(D, np.int32)}), vivace.UnsupportedError, "weight of int32"),
    (lambda v: v["encoder/layer_0/self_attention/linear_0/bias"].__setitem__(D, 1), vivace.UnsupportedError, "keys with a bias"),
    (lambda v: v.update({"decoder/layer_0/ffn/linear_0/weight": np.zeros((INNER, D), np.int8)}), vivace.NotFoundError, "linear_0/weight_scale is missing"),
])
def test_models_that_are_no_whisper(tmp_path, change, error, match):
    v = whisper()
    change(v)
    with pytest.raises(error, match=match):
        convert(folder(tmp_path, model_bin(v)), tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


V = {"a": np.zeros((2, 2), np.float32)}


@pytest.mark.parametrize("data,error,match", [
    (b"PK\x03\x04" + bytes(60), vivace.UnsupportedError, "pickle.*runs whatever code"),
    (b"\x80\x02}q" + bytes(60), vivace.UnsupportedError, "pickle.*safetensors"),
    (model_bin(V, version=99), vivace.UnsupportedError, "got 99"),
    (model_bin(V, spec="TransformerSpec"), vivace.UnsupportedError, "got 'TransformerSpec'"),
    (model_bin(V, aliases=()) + b"x", vivace.CorruptDataError, "1 bytes follow"),
    (model_bin(V, aliases=[("b", "c")]), vivace.CorruptDataError, "alias b of c"),
    (model_bin(V, aliases=[("a", "a")]), vivace.CorruptDataError, "alias a of a"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 2) + variable("a", V["a"]) * 2 + struct.pack("<I", 0), vivace.CorruptDataError, "a is there twice"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 1) + variable("a", V["a"], code=9), vivace.CorruptDataError, "dtype 9"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 1) + name("a") + struct.pack("<B4IBI", 4, *[0xffffffff] * 4, 0, 16) + bytes(16), vivace.CorruptDataError, "is 1361129466.* bytes"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 1) + name("a") + b"\xff" + bytes(900), vivace.CorruptDataError, "rank 255"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 65536), vivace.CorruptDataError, "the file ends"),
    (model_bin({}, aliases=())[:-8] + struct.pack("<I", 65537), vivace.CorruptDataError, "65537 variables, at most 65536 are read"),
    (model_bin(V, aliases=())[:-4] + struct.pack("<I", 0xffffffff), vivace.CorruptDataError, "4294967295 aliases, at most 65536 are read"),
    (struct.pack("<I", 6) + struct.pack("<H", 3) + b"\x01\x02\x00" + bytes(9), vivace.CorruptDataError, "printable"),
])
def test_broken_and_hostile_files(tmp_path, data, error, match):
    with pytest.raises(error, match=match):
        convert(folder(tmp_path, data), tmp_path / "hub")


def test_where_it_may_go(tmp_path):
    source = folder(tmp_path, model_bin(whisper()))
    with pytest.raises(vivace.UnsupportedError, match="name a folder"):
        convert(source, tmp_path / "out.gguf")
    with pytest.raises(vivace.InvalidArgumentError, match="got 'q8_0'"):
        convert(source, tmp_path / "out", dtype="q8_0")
    with pytest.raises(vivace.InvalidArgumentError, match="it exists"):
        convert(source, source)
