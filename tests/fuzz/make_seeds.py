"""Writes the hand-made part of the corpus: one small valid file per feature. Run from the repository root."""
import hashlib
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).parent / "corpus"


def put(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def gguf(pairs, tensors, version=3, align=32):
    """tensors: (name, innermost-first dims, ggml type id, bytes)."""
    infos, data = b"", b""
    for name, dims, kind, size in tensors:
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += bytes(size) + bytes(-size % align)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return head + bytes(-len(head) % align) + data


def safetensors(tensors, metadata=None, pad=0):
    """tensors: (name, dtype, shape, bytes)."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    blob = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(blob)) + blob + bytes(at)


def model_seeds():
    """config.json of every fixture behind the number of its folder, and a GGUF model of 2.4 KB behind the next."""
    beside = ["llama", "llama_untied", "qwen2", "qwen3_yarn", "gemma3", "gemma3_params", "mixtral", "qwen3_moe", "gpt2"]
    for i, name in enumerate(beside):
        put("fuzz_model", name, bytes([i]) + (ROOT.parents[1] / "fixtures/tiny" / name / "config.json").read_bytes())
    u32 = lambda key, value: pair(key, 4, struct.pack("<I", value))  # noqa: E731
    keys = [pair("general.architecture", 8, text("llama")), u32("llama.block_count", 1), u32("llama.embedding_length", 8), u32("llama.attention.head_count", 2),
            u32("llama.attention.head_count_kv", 1), u32("llama.feed_forward_length", 8), u32("llama.context_length", 16),
            pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)), pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4))]
    layer = [("attn_norm", [8]), ("attn_q", [8, 8]), ("attn_k", [8, 4]), ("attn_v", [8, 4]), ("attn_output", [8, 8]), ("ffn_norm", [8]),
             ("ffn_gate", [8, 8]), ("ffn_up", [8, 8]), ("ffn_down", [8, 8])]
    names = [("token_embd.weight", [8, 8]), ("output_norm.weight", [8])] + [(f"blk.0.{n}.weight", d) for n, d in layer]
    tensors = [(n, d, 0, 4 * d[0] * (d[1] if len(d) > 1 else 1)) for n, d in names]
    put("fuzz_model", "gguf_llama", bytes([len(beside)]) + gguf(keys, tensors))


def tokenizer_seeds():
    byte_names = [*map(chr, range(0x21, 0x7f)), *map(chr, range(0xa1, 0xad)), *map(chr, range(0xae, 0x144))]
    added = lambda i, name, special: {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}  # noqa: E731
    names = [added(260, "<|im_end|>", True), added(261, "<think>", False), added(262, "\n\n", False)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe = {"version": "1.0", "added_tokens": names, "normalizer": None, "pre_tokenizer": level, "decoder": level,
           "model": {"type": "BPE", "vocab": {**{c: i for i, c in enumerate(byte_names[:256])}, "ab": 256, "abc": 257}, "merges": ["a b", ["ab", "c"]]}}
    digits = {**bpe, "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}}
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    words = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "a", "b", "ab"]
    pieces = {"version": "1.0", "added_tokens": [added(0, "<unk>", True), added(1, "<s>", True), added(270, "<tool>", False)], "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, mark]},
              "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, "decoder": None,
              "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True, "vocab": {w: i for i, w in enumerate(words)}, "merges": [["a", "b"]]}}
    for name, value in (("bytes", bpe), ("digits", digits), ("pieces", pieces)):
        put("fuzz_tokenizer", name, json.dumps(value, ensure_ascii=False))
    put("fuzz_codec", "bytes", json.dumps(bpe))
    put("fuzz_codec", "small", json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "\u0120b": 1, "\u65e5": 2}, "merges": []}}))


def robot_seeds():
    stats = {k: {"mean": [0.5, -1.0], "std": [1.0, 2.0], "q01": [-1.0, -2.0], "q99": [1.0, 2.0]} for k in ("state", "actions")}
    put("fuzz_statistics", "openpi", json.dumps({"norm_stats": stats}))
    put("fuzz_statistics", "huge", json.dumps({"norm_stats": {**stats, "actions": {**stats["actions"], "q99": [1e300, 3e38], "std": [1e-300, 0.0]}}}))
    rows = [(b"a" * 64, b"cubin of a"), (b"b" * 64, b"cubin of b, longer")]
    index, data = b"", b""
    for key, body in rows:
        index += key + struct.pack("<QQ", 48 + 112 * len(rows) + len(data), len(body)) + hashlib.sha256(body).digest()
        data += body
    whole = b"VVPACK01" + struct.pack("<Q", len(rows)) + hashlib.sha256(index).digest() + index + data
    put("fuzz_pack", "two", whole)
    put("fuzz_pack", "none", b"VVPACK01" + bytes(8) + hashlib.sha256(b"").digest())


def reply_seeds():
    """Replies of every form: two bytes of options, then what tests/replies.py draws."""
    sys.path.insert(0, str(ROOT.parents[2]))
    from tests import replies

    forms = ["qwen_xml", "gemma", "functiongemma", "hermes", "llama", None, None]
    for seed in range(60):
        case = replies.drawn(seed)
        o = case["options"]
        how = forms.index(o["calls"]) | (0x20 if o["reasoning"] else 0) | (0x40 if o["in_reasoning"] else 0) | (0x80 if o["reasoning"] == "gemma" else 0)
        if case["want"]["calls"]:
            put("fuzz_reply", f"drawn_{seed}", bytes([how, 3 + seed]) + case["text"].encode())
    for i, (form, text) in enumerate(t for t in replies.ODD if len(t[1]) < 200):
        put("fuzz_reply", f"odd_{i}", bytes([forms.index(form) | 0x20, 0x80 + i]) + text.encode())


def wav_seeds():
    for name, coding, channels, bits, extensible in (("pcm16", 1, 2, 16, False), ("pcm8", 1, 1, 8, False), ("pcm24_extensible", 1, 3, 24, True), ("float", 3, 1, 32, False), ("double", 3, 1, 64, True)):
        block = channels * bits // 8
        head = struct.pack("<HHIIHH", 0xFFFE if extensible else coding, channels, 16000, 16000 * block, block, bits)
        if extensible:
            head += struct.pack("<HHIH", 22, bits, 0, coding) + bytes.fromhex("000000001000800000aa00389b71")
        body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"LIST\x03\0\0\0abc\0data" + struct.pack("<I", 4 * block) + bytes(range(4 * block))
        put("fuzz_wav", name, b"RIFF" + struct.pack("<I", len(body)) + body)


def wire_seeds():
    """What robots send: messages (0), heads (1), a client's frames (2), a server's (3)."""
    def array(dtype, shape, data):
        def blob(b):
            return b"\xc4" + bytes([len(b)]) + b
        return b"\x84" + blob(b"__ndarray__") + b"\xc3" + blob(b"data") + b"\xc5" + struct.pack(">H", len(data)) + data + blob(b"dtype") + bytes([0xa0 + len(dtype)]) + dtype + blob(b"shape") + bytes([0x90 + len(shape), *shape])

    def name(s):
        return b"\xd9" + bytes([len(s)]) + s.encode()

    frame, state = array(b"|u1", (4, 5, 3), bytes(60)), array(b"<f4", (8,), bytes(32))
    libero = b"\x84" + name("observation/image") + frame + name("observation/wrist_image") + array(b"<f4", (3, 2, 2), bytes(48)) + name("observation/state") + state + name("prompt") + name("go")
    droid = b"\x84" + name("observation/exterior_image_1_left") + frame + name("observation/wrist_image_left") + frame + name("observation/joint_position") + array(b"<f8", (7,), bytes(56)) + name("observation/gripper_position") + b"\xcb" + bytes(8)
    put("fuzz_robot_wire", "libero", b"\0" + libero)
    put("fuzz_robot_wire", "droid", b"\0" + droid)
    put("fuzz_robot_wire", "any", b"\0\x82" + name("images/a") + array(b"<f2", (3, 2, 2), bytes(24)) + name("state") + array(b"<i8", (1,), bytes(8)))
    put("fuzz_robot_wire", "own", b"\0\x81" + name("vivace") + b"\x83" + name("seed") + b"\xcf" + b"\xff" * 8 + name("x") + b"\x93\x01\xd0\x80\xc0" + name("y") + b"\xca\x7f\xc0\0\0")
    put("fuzz_robot_wire", "upgrade", b"\1GET / HTTP/1.1\r\nHost: x:8000\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
    put("fuzz_robot_wire", "reply", b"\1HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
    put("fuzz_robot_wire", "client", b"\2\x02\x83\1\2\3\4abc\x89\x81\1\2\3\4x\x80\x82\1\2\3\4de\x88\x82\1\2\3\4\2\xea")
    put("fuzz_robot_wire", "server", b"\3\x82\x7e\0\x7e" + bytes(126) + b"\x81\x03abc\x8a\0\x88\0")


def main():
    wav_seeds()
    scalars = [pair("a.u8", 0, b"\x01"), pair("a.i16", 3, b"\xff\xff"), pair("a.u32", 4, struct.pack("<I", 7)),
               pair("a.f32", 6, struct.pack("<f", 0.5)), pair("a.bool", 7, b"\x01"), pair("a.u64", 10, bytes(8)),
               pair("a.f64", 12, struct.pack("<d", 1e300)), pair("general.name", 8, text("tiny"))]
    arrays = [pair("t.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("") + text("bc")),
              pair("t.types", 9, struct.pack("<IQ2i", 5, 2, 1, -1)), pair("t.flags", 9, struct.pack("<IQ", 7, 2) + b"\0\1"),
              pair("t.scores", 9, struct.pack("<IQ2f", 6, 2, 0.0, -1.0))]
    put("fuzz_gguf", "empty", gguf([], []))
    put("fuzz_gguf", "scalars", gguf(scalars, []))
    put("fuzz_gguf", "arrays", gguf(arrays, [], version=2))
    put("fuzz_gguf", "aligned", gguf([pair("general.alignment", 4, struct.pack("<I", 64))], [("w", [4], 0, 16), ("b", [], 0, 4)], align=64))
    put("fuzz_gguf", "blocks", gguf(scalars[:1], [("q4_0", [32, 2], 2, 36), ("q4_1", [32], 3, 20), ("q8_0", [32], 8, 34), ("q6_k", [256], 14, 210),
                                                  ("bf16", [2, 3, 1, 1], 30, 12)]))
    put("fuzz_safetensors", "empty", safetensors([]))
    put("fuzz_safetensors", "two", safetensors([("a", "F32", [2, 2], 16), ("b.weight", "BF16", [3], 6)], {"format": "pt"}, pad=5))
    put("fuzz_safetensors", "zero", safetensors([("z", "F16", [0, 4], 0), ("s", "F64", [], 8), ("y", "BOOL", [1], 1)]))
    put("fuzz_safetensors", "types", safetensors([(t, t, [1], n) for t, n in (("F8_E4M3", 1), ("F8_E5M2", 1), ("I64", 8), ("I16", 2), ("U8", 1))]))
    put("fuzz_safetensors", "index", '{"metadata": {"total_size": 3}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    model_seeds()
    tokenizer_seeds()
    robot_seeds()
    reply_seeds()
    wire_seeds()
    put("fuzz_json", "config", '{"architectures": ["LlamaForCausalLM"], "rope_scaling": {"factor": 8.0, "type": null}, "n": -12, "e": 1.5e-3, "ok": true}')
    put("fuzz_json", "escapes", r'["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00", "é€😀", {"\u0061": 0, "b": []}]')
    put("fuzz_json", "numbers", "[0, -0, 9223372036854775807, -9223372036854775808, 9223372036854775808, 1e308, 0.1, 1E+2, 2e-2]")
    put("fuzz_json", "deep", "[" * 40 + "]" * 40)


if __name__ == "__main__":
    main()
