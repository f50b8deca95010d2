"""Tokenizers and chat templates of checkpoints: equal to the references, bounded whatever a file says."""
import json

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, models, pre_tokenizers

import vivace
from vivace import template
from vivace.text import load_text

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 < 2 & \"x\"?\n"}, {"role": "assistant", "content": "Yes"}]
# One for each thing that templates of published models do.
TEMPLATES = {
    "chatml": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "turns": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}{% set rest = messages[1:] %}{% else %}"
             "{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}] {{ first if loop.first }}{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}",
    "macro": "{%- macro say(m) -%}\n{{ m.role | upper }}: {{ m.content.strip() }}\n{%- endmacro -%}\n{% for m in messages %}\n  {{- say(m) ~ '\\n' }}\n{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% if ns.n > 20 %}{% break %}{% endif %}{{ ns.n }},{% endfor %}",
    "tools": "{% if tools is not none and tools %}TOOLS{% endif %}{{ messages | tojson }}{{ messages | map(attribute='role') | join('/') }}",
    "slices": "{% for m in messages[::-1] if m.role != 'system' %}{{ m.content.split('<')[0] | default('-', true) }}|{{ '%03d' | format(loop.revindex) }}\n{% endfor %}",
}


def reference(source, **values):
    """jinja2 in this process, with what transformers adds to it."""
    def fail(why):
        raise ValueError(why)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False, **k)
    env.globals["raise_exception"] = fail
    return env.from_string(source).render(**values)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generation", [True, False])
def test_templates_equal_jinja2(name, generation):
    values = dict(messages=CHAT, add_generation_prompt=generation, tools=None, documents=None, bos_token="<s>", eos_token="</s>")
    got = template.render(TEMPLATES[name], **values)
    assert got == reference(TEMPLATES[name], **values) and got


HOSTILE = {
    "time": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.5 seconds"),
    "time in a filter": ("{{ (range(90000)|list * 9)|sort|map('string')|join|length if range(9)|map('string') }}{% for i in range(99999) %}{{ (range(99999)|list)|sum and '' }}{% endfor %}",
                         "more than"),
    "memory": ("{% set ns = namespace(s='x' * 1024) %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "memory|ended the process"),
    "memory in a filter": ("{{ 'x'|center(10**11) }}", "memory|ended the process"),
    "memory in a format": ("{{ '%100000000000d' % 1 }}", "memory|ended the process"),
    "power": ("{{ 9 ** (9 ** 9) }}", "more than|memory|ended the process"),
    "output": ("{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}", "more than 4194304 characters"),
    "depth of macros": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "too deeply|ended the process"),
    "depth of brackets": ("{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "too deeply|ended the process"),
    "depth of blocks": ("{% if 1 %}" * 2500 + "{% endif %}" * 2500, "too deeply|ended the process|too many statically nested"),
    "size": ("x" * (template.MAX_TEMPLATE_CHARS + 1), "at most 65536 are accepted"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name, monkeypatch):
    source, why = HOSTILE[name]
    template.render("")  # the process is up: what follows is the template's own time
    monkeypatch.setattr(template, "MAX_SECONDS", 0.5)
    with pytest.raises((vivace.LimitExceededError, vivace.CorruptDataError), match=f"{why}|more than 0.5 seconds"):
        template.render(source)
    monkeypatch.undo()
    assert template.render("{{ 1 + 1 }}") == "2"  # the next one is served as ever


@pytest.mark.parametrize("source,why", [
    ("{% for %}", "Expected"), ("{{ nothing.there }}", "undefined"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"), ("{{ messages.append(1) }}", "unsafe"), ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ("{% include '/etc/passwd' %}", "no loader"), ("{{ range(10**9) }}", "OverflowError"),
])
def test_broken_and_forbidden_templates(source, why):
    with pytest.raises(vivace.CorruptDataError, match=why):
        template.render(source, messages=[])


def test_a_text_says_what_it_is_in_a_line():
    from tokenizers import Tokenizer, models

    from vivace.text import Text

    said = repr(Text(Tokenizer(models.BPE({"a": 0}, [])), eos=[0], template="{{ messages }}" * 100))
    assert said == "Text(bos=None, eos=[0], add_bos=False)"


def test_what_a_template_refuses_itself():
    with pytest.raises(vivace.InvalidArgumentError, match="it refuses these messages: no tools here"):
        template.render("{{ raise_exception('no tools here') }}")


def test_messages_must_be_plain_data():
    with pytest.raises(vivace.InvalidArgumentError, match="plain data"):
        template.render("{{ messages }}", messages=object())


def hub_folder(path, **files):
    tok = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "</s>": 3}, merges=[("a", "b")]))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.add_special_tokens(["</s>"])
    tok.save(str(path / "tokenizer.json"))
    for name, text in {"tokenizer_config": '{"eos_token": "</s>"}', **files}.items():
        (path / f"{name}.json").write_text(text)
    return path


def test_a_hub_folder(tmp_path):
    text = load_text(str(hub_folder(tmp_path, tokenizer_config='{"eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"}]}')), {})
    assert (text.eos, text.bos, text.encode("ab ba")) == ([3], None, [2, 1, 0])
    assert text.chat_ids([{"role": "user", "content": "ab"}]) == [2, 3]


@pytest.mark.parametrize("files,why", [
    (dict(tokenizer=""), "tokenizer.json: byte 0"),
    (dict(tokenizer="[[]]"), "tokenizer.json: the document: expected object"),
    (dict(tokenizer='{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}}'), "tokenizer.json: the tokenizers library refuses it"),
    (dict(tokenizer_config="[]"), "tokenizer_config.json: wanted an object, got list"),
    (dict(tokenizer_config="{"), "tokenizer_config.json: "),
    (dict(tokenizer_config="[" * 100000), "tokenizer_config.json: "),
    (dict(tokenizer_config='{"chat_template": 5}'), "chat_template: wanted a text"),
    (dict(tokenizer_config=r'{"bos_token": "\ud83d"}'), "bos_token: the tokenizers library refuses it.*surrogates"),
    (dict(tokenizer_config='{"bos_token": 5}'), "bos_token: wanted a token's text"),
    (dict(generation_config='{"eos_token_id": [1, "x"]}'), "eos_token_id: wanted token ids, got x"),
    (dict(generation_config='{"eos_token_id": -1}'), "eos_token_id: wanted token ids, got -1"),
])
def test_broken_hub_files(tmp_path, files, why):
    folder = hub_folder(tmp_path, **files)
    with pytest.raises(vivace.CorruptDataError, match=why):
        load_text(str(folder), {})


def test_a_tokenizer_that_fails_while_it_encodes(tmp_path):
    folder = hub_folder(tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["model"]["unk_token"] = "gone"
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(vivace.CorruptDataError, match="gone"):
        load_text(str(folder), {}).encode("xyz")


def test_files_that_are_no_text_or_too_large(tmp_path):
    folder = hub_folder(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(vivace.CorruptDataError, match="no UTF-8"):
        load_text(str(folder), {})
    with open(folder / "chat_template.jinja", "wb") as f:
        f.truncate((64 << 20) + 1)
    with pytest.raises(vivace.LimitExceededError, match="67108865 bytes, at most 67108864 are accepted"):
        load_text(str(folder), {})


@pytest.mark.parametrize("target", ["tokenizer", "template", "safetensors", "gguf"])
def test_a_slice_of_the_fuzzer(target):
    pytest.importorskip("gguf")
    from tests.fuzz import fuzz_text

    assert fuzz_text.run(target, seconds=1.0, seed=20) == 0


def test_the_weights_size_counts_wherever_they_are(tmp_path):
    """A tokenizer of its own folder may take what the weights that it belongs to allow."""
    (tmp_path / "text").mkdir()
    folder = hub_folder(tmp_path / "text", tokenizer=json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {f"{i}": i for i in range(250_000)}, "merges": []}}))
    for itself in (None, str(folder), str(folder / "tokenizer.json")):  # no file counts twice
        with pytest.raises(vivace.LimitExceededError, match="its tokenizer would take more than"):
            load_text(str(folder), {}, checkpoint=itself)
    weights = tmp_path / "weights" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(bytes(64 << 20))  # written: holes give no room
    assert load_text(str(folder), {}, checkpoint=str(weights.parent)).tokenizer.get_vocab_size() == 250_000
    assert load_text(str(folder), {}, checkpoint=str(weights)).tokenizer.get_vocab_size() == 250_000
