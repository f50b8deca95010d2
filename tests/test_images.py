"""Images in prompts: answers of a tiny random Qwen3-VL (tests/fixtures/qwen3_vl) through generate(), chat() and the server against greedy steps whose
positions are counted here, pages that never serve another picture, and what callers get wrong. Qwen3-VL's numbers themselves: test_qwen3_vl.py."""
import base64
import http.client
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import vivace
from tests.serving import comply, inside
from tests.test_qwen3_vl import DEVICE, FIXTURE, IMAGE, SIDE, load, logits
from vivace import images

TEMPLATE = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
NAMES = {1: "<|im_start|>", 2: "<|im_end|>", 5: "<|vision_start|>", 6: "<|vision_end|>", IMAGE: "<|image_pad|>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The fixture with a tokenizer of a token a character."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    made = tmp_path_factory.mktemp("vl")
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURE / file, made)
    characters = [chr(c) for c in range(32, 127)] + ["\n"]
    vocab = {NAMES.get(i, f"<unused{i}>"): i for i in range(9)} | {c: 9 + i for i, c in enumerate(characters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unused0>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in NAMES.values()])
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (made / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 2 * SIDE * SIDE, "longest_edge": 10 * SIDE * SIDE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    return made


def open_model(folder, **options):
    return vivace.load_model(folder, **{"device": DEVICE, "precision": "f32", "kv_dtype": "f32", "context": 256, "max_batch": 4, "max_image_tokens": 10, "threads": 2 * (DEVICE == "cpu"), **options})


@pytest.fixture(scope="module")
def model(folder):
    with open_model(folder) as made:
        yield made


def picture(seed, lines, columns):
    return np.random.default_rng(seed).integers(0, 256, (lines * SIDE, columns * SIDE, 3), np.uint8)


def said(*parts):
    """A user's turn: texts, and pictures as arrays."""
    return [{"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]}]


def showing(form, text="?"):
    """A turn with a picture in any form."""
    return [{"role": "user", "content": [{"type": "image", "image": form}, {"type": "text", "text": text}]}]


class Reference:
    """Greedy answers by one step a token after a prompt in pieces that begin with an image, with places counted as Qwen3-VL's paper has them: an image's tokens share a time and have its lines and
    columns, and what follows begins behind the larger of both."""

    def __init__(self):
        self._core = load(context=256)  # of 32 slots: 4 places

    def __call__(self, ids, pictures, most):
        rows, at, left, pos = [], 0, [p.shape[0] // SIDE for p in pictures], 0
        self._core.start(0, 0.0, 0)
        seen = 0
        while pos < len(ids):
            if ids[pos] != IMAGE:
                rows.append((ids[pos], pos, 0, False, -1, *[at - pos] * 3))
                at, pos = at + 1, pos + 1
                continue
            if rows:
                self._core.step(rows)
            p = pictures[seen]
            self._core.see(seen % 4, p.tobytes(), *p.shape[:2])
            rows, h, w = [], left[seen], p.shape[1] // SIDE
            for k in range(h * w):
                rows.append((IMAGE, pos, 0, False, seen % 4 * 10 + k, at - pos, at + k // w - pos, at + k % w - pos))
                pos += 1
            at, seen = at + max(h, w), seen + 1
        rows[-1] = (*rows[-1][:3], True, *rows[-1][4:])
        drawn, said = [], []
        while len(drawn) < most:
            z = logits(self._core, rows)[-1].astype(np.float64)
            drawn.append(int(z.argmax()))
            said.append(z.max() - np.log(np.exp(z - z.max()).sum()) - z.max())
            rows = [(drawn[-1], pos, 0, True, -1, *[at - pos] * 3)]
            at, pos = at + 1, pos + 1
        return drawn, said


@pytest.fixture(scope="module")
def reference():
    return Reference()


CASES = {
    "one": said(picture(1, 2, 3), "what?"),
    "text first": said("look: ", picture(2, 1, 2), " and tell"),
    "several": said(picture(3, 1, 2), "or", picture(4, 3, 3), picture(5, 5, 2), "?"),
    "turns": [*said(picture(6, 2, 2), "a?"), {"role": "assistant", "content": "b"}, *said("and ", picture(7, 2, 4))],
    "words": said("no picture at all"),
}


def pictures_of(messages):
    return [p["image"] for m in messages for p in m["content"] if isinstance(p, dict) and p["type"] == "image"]


def told(answer):
    """What an answer was drawn as, to the bit: a tiny model's tokens alone repeat themselves."""
    return answer.tokens, answer.logprobs


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_greedy_steps(model, reference, case):
    messages = CASES[case]
    ids = model.prompt_ids(messages)
    shown = pictures_of(messages)
    assert ids.count(IMAGE) == sum(p.shape[0] * p.shape[1] // SIDE**2 for p in shown) and len(images.of(ids)) == len(shown)
    answer, (tokens, logprobs) = model.chat(messages, max_tokens=12), reference(ids, shown, 12)
    assert answer.tokens == tokens
    np.testing.assert_allclose(answer.logprobs, logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [dict(prefill_chunk=4), dict(prefill_chunk=16, max_batch=2), dict(num_kv_blocks=0), dict(num_kv_blocks=16, max_batch=8), dict(eager=True)], ids=str)
def test_whatever_runs_beside_and_however_prompts_are_cut(folder, model, options):
    """All cases at once, more images on the way than there are places for."""
    if options.pop("eager", False):
        with pytest.raises(vivace.InvalidArgumentError):
            open_model(folder, eager=True)  # of the core alone
        return
    want = [told(model.chat(m, max_tokens=12)) for m in CASES.values()]
    with open_model(folder, **options) as other:
        answers = other.generate_batch(list(CASES.values()) * 2, max_tokens=12)
        assert [a.error for a in answers] == [None] * len(answers) and [told(a) for a in answers] == want * 2
        assert [told(a) for a in other.generate_n(CASES["several"], 3, max_tokens=12)] == [want[list(CASES).index("several")]] * 3


def test_more_images_than_places_in_one_prompt(model, reference):
    shown = [picture(20 + i, 1 + i % 3, 2 + i % 2) for i in range(7)]
    messages = said("see", *(x for i, p in enumerate(shown) for x in (p, str(i))))
    ids = model.prompt_ids(messages)
    want, answer = reference(ids, shown, 8), model.chat(messages, max_tokens=8, reuse=False)
    assert answer.tokens == want[0]
    np.testing.assert_allclose(answer.logprobs, want[1], rtol=0, atol=1e-4)
    assert told(model.generate_batch([messages, CASES["one"]], max_tokens=8)[0]) == told(answer)


def test_pages_of_another_picture_are_never_taken(folder):
    """The same words around another picture of the same size; around the same one; around one that differs in one value."""
    words = "x" * 70
    a, b = picture(8, 2, 4), picture(9, 2, 4)
    c = a.copy()
    c[3, 5, 1] ^= 1
    with open_model(folder, num_kv_blocks=32) as model:
        def ask(p, **options):
            return model.chat(said(words, p, "y" * 80), max_tokens=10, **options)
        alone = [ask(p, reuse=False) for p in (a, b, c)]
        assert len({tuple(x.logprobs) for x in alone}) == 3 and all(x.cached_tokens == 0 for x in alone)
        first = model.prompt_ids(said(words, a, "y" * 80)).index(IMAGE)
        for p, want, cached in ((a, 0, (0, 0)), (a, 0, (first + 8, 1 << 30)), (b, 1, (1, first)), (c, 2, (1, first)), (b, 1, (first + 8, 1 << 30)), (c, 2, (first + 8, 1 << 30)), (a, 0, (first + 8, 1 << 30))):
            got = ask(p)
            assert told(got) == told(alone[want]) and cached[0] <= got.cached_tokens <= cached[1], (got.cached_tokens, cached)
        assert ask(a, salt="else").cached_tokens == 0
        turn = [*said(words, a, "y" * 80), {"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}]
        assert told(model.chat(turn, max_tokens=10)) == told(model.chat(turn, max_tokens=10, reuse=False))
        assert model.chat(turn, max_tokens=10).cached_tokens > first + 8


def test_numbers_of_images_do_not_come_back(folder):
    """More pictures than are remembered: the first is computed anew, not taken for another."""
    with open_model(folder, num_kv_blocks=32, max_image_tokens=4) as model:
        first = model.chat(said(picture(0, 1, 2), "?"), max_tokens=3)
        for i in range(1, 1100):
            model.chat(said(picture(i, 1, 2), "?"), max_tokens=1)
        again = model.chat(said(picture(0, 1, 2), "?"), max_tokens=3)
        assert told(again) == told(first) and again.cached_tokens < 20


def encoded(array, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


def test_every_form_of_a_picture(model, tmp_path):
    p = picture(10, 2, 3)
    (tmp_path / "p.png").write_bytes(encoded(p))
    want = model.chat(said(p, "?"), max_tokens=6).tokens
    url = "data:image/png;base64," + base64.b64encode(encoded(p)).decode()
    for form in (Image.fromarray(p), encoded(p), str(tmp_path / "p.png"), tmp_path / "p.png", url):
        assert model.chat(showing(form), max_tokens=6).tokens == want
        assert model.generate("?", images=[form], max_tokens=6).tokens == want
    for part in ({"url": url}, url):
        assert model.chat([{"role": "user", "content": [{"type": "image_url", "image_url": part}, {"type": "text", "text": "?"}]}], max_tokens=6).tokens == want


SIZES = json.loads((FIXTURE.parent / "images" / "smart_resize.json").read_text())


def test_sizes_are_the_processors():
    """Sizes that transformers' Qwen2VLImageProcessor gives, drawn (tests/reference/make_image_sizes.py)."""
    for least, most, side, cases in SIZES:
        made = images.Resizer("/nowhere", {"token": 0, "side": side, "tokens": 1 << 30})
        made.least, made.most = least, most
        for h, w, height, width in cases:
            assert made.size(h, w, "it") == (height, width), (h, w, least, most, side)


def test_turned_and_transparent_files(model):
    """As transformers loads them: upright, alpha dropped."""
    p = picture(11, 2, 3)
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rows are columns
    Image.fromarray(np.ascontiguousarray(np.rot90(p))).save(turned, "PNG", exif=exif)
    clear = np.dstack([p, np.full(p.shape[:2], 90, np.uint8)])
    want = images.of(model.prompt_ids(said(p, "?")))
    for data in (turned.getvalue(), encoded(clear)):
        assert images.of(model.prompt_ids(said(data, "?"))) == want


BAD = [
    (np.zeros((8, 8), np.uint8), vivace.InvalidArgumentError, "u8"), (np.zeros((8, 8, 3), np.float32), vivace.InvalidArgumentError, "u8"), (np.zeros((8, 8, 4), np.uint8), vivace.InvalidArgumentError, "u8"),
    (7, vivace.InvalidArgumentError, "u8"), (b"no picture", vivace.InvalidArgumentError, "no picture"), (encoded(picture(1, 2, 2))[:-40], vivace.InvalidArgumentError, "broken"),
    (encoded(picture(1, 2, 2), "BMP"), vivace.InvalidArgumentError, "no picture"), ("/no/such/file.png", vivace.NotFoundError, "No such file"), ("https://example.com/a.png", vivace.UnsupportedError, "no address is fetched"),
    ("data:image/png,abc", vivace.InvalidArgumentError, "base64"), ("data:image/png;base64,%%", vivace.InvalidArgumentError, "base64"), (np.zeros((8, 8 * 201, 3), np.uint8), vivace.InvalidArgumentError, "factor of 200"),
    (np.zeros((0, 8, 3), np.uint8), vivace.InvalidArgumentError, "factor of 200"), (np.broadcast_to(np.zeros(3, np.uint8), (1 << 14, 1 << 13, 3)), vivace.LimitExceededError, "pixels, at most"),
    (np.zeros((8, 8 * 150, 3), np.uint8), vivace.LimitExceededError, "max_image_tokens"), (None, vivace.InvalidArgumentError, "no image"),
]


@pytest.mark.parametrize("value, error, says", BAD, ids=[s + str(i) for i, (*_, s) in enumerate(BAD)])
def test_bad_pictures(model, value, error, says):
    with pytest.raises(error, match=says):
        model.chat(showing(value), max_tokens=1)


def test_bad_prompts(folder, model, tmp_path):
    p = picture(1, 2, 2)
    for messages, error, says in (
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"href": "x"}}]}], vivace.InvalidArgumentError, "data URL"), ([{"role": "user", "content": [{"type": "video", "video": "p"}]}], vivace.InvalidArgumentError, "language models take text"),
        (said(*[p] * 257), vivace.LimitExceededError, "at most 256"), (said(*[p] * 80, "?"), vivace.LimitExceededError, "context holds"),
    ):
        with pytest.raises(error, match=says):
            model.chat(messages, max_tokens=1)
    with pytest.raises(vivace.InvalidArgumentError, match="stands for an image"):
        model.generate_ids([9, IMAGE, 10], max_tokens=1)
    with pytest.raises(vivace.InvalidArgumentError, match="parts of the content"):
        model.generate(said("?"), images=[p])
    with pytest.raises(vivace.InvalidArgumentError, match="prompts of text"):
        model.chat(said(p, "?"), draft="lookup", num_speculative_tokens=2)
    assert model.chat(said("<|image_pad|>", p), max_tokens=2).tokens  # a user's words are words
    stream = model.stream(said(p, "?"), max_tokens=5)
    next(stream)
    with pytest.raises(vivace.UnsupportedError, match="answer to images"):
        stream.capsule()
    stream.close()
    broken = tmp_path / "vl"
    shutil.copytree(folder, broken)
    (broken / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "")}))
    with open_model(broken) as other, pytest.raises(vivace.InvalidArgumentError, match="0 places"):
        other.chat(said(p, "?"), max_tokens=1)
    (broken / "preprocessor_config.json").write_text('{"image_mean": [0.4, 0.5, 0.5]}')
    with open_model(broken) as other, pytest.raises(vivace.UnsupportedError, match="image_mean"):
        other.chat(said(p, "?"), max_tokens=1)
    text = tmp_path / "text"
    shutil.copytree(FIXTURE.parent / "tiny" / "qwen3", text)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, text)
    with vivace.load_model(text, device=DEVICE) as other:
        with pytest.raises(vivace.InvalidArgumentError, match="language models take text"):
            other.chat(said(p, "?"), max_tokens=1)
        with pytest.raises(vivace.UnsupportedError, match="takes none"):
            other.generate("?", images=[p])


def test_over_http(model):
    """Data URLs in chat; all else is a 400 that says why."""
    from vivace.server.engine import Engine

    p, q = picture(12, 2, 3), picture(13, 3, 2)
    url = lambda a: "data:image/png;base64," + base64.b64encode(encoded(a)).decode()  # noqa: E731
    part = lambda u: {"type": "image_url", "image_url": {"url": u, "detail": "auto"}}  # noqa: E731
    text = lambda t: {"type": "text", "text": t}  # noqa: E731
    want = model.chat(said(p, "or", q, "?"), max_tokens=8)
    with inside(model, Engine) as (engine, at):
        def ask(content, path="/v1/chat/completions", **fields):
            connection = http.client.HTTPConnection(at[len("http://"):], timeout=60)
            connection.request("POST", path, json.dumps({"model": engine.name, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0, **fields}), {"content-type": "application/json"})
            got = connection.getresponse()
            return got.status, json.loads(got.read())
        status, body = ask([part(url(p)), text("or"), part(url(q)), text("?")])
        assert status == 200 and body["choices"][0]["message"]["content"] == want.text and body["usage"]["prompt_tokens"] == want.prompt_tokens
        comply(at, "openai-chat", ["chat-image-input"], "--ignore", "finish_reason")  # its weights are drawn: no answer ends by itself
        for content, says in (([part("https://example.com/a.png")], "no address is fetched"), ([part("data:image/png;base64,AAAA")], "no picture"), ([part(url(p))] * 17, "more than 16 images"), ([{"type": "input_image", "image_url": "x"}], "parts of type"),
                              ([{"type": "image_url"}], "data URL")):
            status, body = ask(content)
            assert status == 400 and says in body["error"]["message"], body
        assert ask([part(url(picture(1, 1, 2)))] * 16)[0] == 200
        status, body = ask([part(url(p))], "/tokenize", max_tokens=None)
        assert status == 400
