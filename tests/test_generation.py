"""generation_config.json as it says, and what editors and type checkers see of generate()."""
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vivace
from tests.test_smollm2 import model_path
from vivace import generation, options
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError
from vivace.model import TextModel

TINY = Path(__file__).parent / "fixtures/tiny/llama"
IDS = [1, 2, 3]
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
TAKEN = {n: v for n, v in SAMPLED.items() if n != "do_sample"}


def checkpoint(folder, said) -> Path:
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    (folder / generation.FILE).write_text(said if isinstance(said, str) else json.dumps(said))
    return folder


@pytest.mark.parametrize("said,taken", [
    (SAMPLED, TAKEN), ({}, {}), ({"do_sample": False, **{n: v for n, v in TAKEN.items()}}, {"repetition_penalty": 1.1}), (TAKEN, {"repetition_penalty": 1.1}),
    ({"do_sample": True}, {"temperature": 1.0}), ({"do_sample": True, "temperature": 0.0, "top_k": 5}, {}), ({"do_sample": True, "temperature": None, "top_k": None, "eos_token_id": [1, 2], "max_length": 7}, {"temperature": 1.0}),
])
def test_what_is_taken(tmp_path, said, taken):
    assert generation.read(str(checkpoint(tmp_path, said))) == taken
    assert generation.read(str(tmp_path / "model.safetensors")) == taken, "beside a file"
    assert generation.read(str(tmp_path / "x.gguf")) == {}


@pytest.mark.parametrize("said,why", [
    ("{", "generation_config.json: "), ("[]", "wanted an object"), ({"do_sample": "yes"}, "do_sample: wanted True or False"), ({"do_sample": True, "temperature": "hot"}, "temperature: wanted a finite number"),
    ({"do_sample": True, "temperature": -1}, "temperature: wanted a number from 0"), ('{"do_sample": true, "temperature": NaN}', "temperature"), ('{"do_sample": true, "top_p": 1e999}', "top_p"),
    ({"do_sample": True, "top_p": 0}, "top_p: wanted a number above 0"), ({"do_sample": True, "top_k": 1.5}, "top_k: wanted a whole number"), ({"do_sample": True, "top_k": 2**31}, "top_k"), ({"repetition_penalty": 0}, "repetition_penalty: wanted a number above 0"),
])
def test_what_is_wrong_is_named_and_can_be_left_out(tmp_path, said, why):
    folder = checkpoint(tmp_path, said)
    with pytest.raises(CorruptDataError, match=why) as e:
        vivace.load_model(folder, device="cpu")
    assert "generation_config=False" in str(e.value) and str(e.value).isprintable()
    with vivace.load_model(folder, device="cpu", generation_config=False) as model:
        assert model.report()["generation_config"] == "off"


def test_a_file_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "MAX_BYTES", 100)
    assert generation.read(str(checkpoint(tmp_path, "{}" + " " * 98))) == {}
    with pytest.raises(LimitExceededError):
        generation.read(str(checkpoint(tmp_path, "{}" + " " * 99)))


def test_answers_are_drawn_as_it_says(tmp_path):
    def answer(model, **given):
        return model.generate_ids(IDS, max_tokens=24, **given).tokens

    with vivace.load_model(checkpoint(tmp_path, SAMPLED), device="cpu") as model, vivace.load_model(TINY, device="cpu") as plain, vivace.load_model(tmp_path, device="cpu", generation_config=False) as off:
        assert model.report()["generation_config"] == TAKEN and plain.report()["generation_config"] == {} and off.report()["generation_config"] == "off"
        greedy, drawn = answer(plain), answer(plain, **TAKEN, seed=3)
        assert greedy == answer(off) and drawn != greedy
        assert answer(model, seed=3) == drawn == answer(model, seed=3, temperature=None, top_k=None)
        assert answer(model, temperature=0.0, repetition_penalty=1.0) == greedy, "what a call says goes first"
        assert answer(model, temperature=0.5, seed=3) == answer(plain, **(TAKEN | {"temperature": 0.5}), seed=3)


def test_drafts_are_greedy_whatever_it_says(tmp_path):
    with vivace.load_model(checkpoint(tmp_path, SAMPLED), device="cpu", max_batch=6) as model, vivace.load_model(TINY, device="cpu") as plain:
        assert model.generate_ids(IDS, max_tokens=12, draft="lookup").tokens == plain.generate_ids(IDS, max_tokens=12).tokens


def test_tokens_that_end_an_answer(tmp_path):
    """A list of them, and none of them where the file is not read."""
    from tests.test_text import hub_folder

    folder = hub_folder(tmp_path, generation_config='{"eos_token_id": [1, 2]}')
    from vivace.text import load_text

    assert load_text(str(folder), {}).eos == [1, 2] and load_text(str(folder), {}, generation_config=False).eos != [1, 2]


def test_stop_takes_what_openai_takes():
    with vivace.load_model(model_path(), device="cpu") as model:
        plain = model.generate("Count from one to ten.", max_tokens=24)
        word = plain.text.split()[2]
        cut = plain.text[:plain.text.index(word)]
        assert model.generate("Count from one to ten.", max_tokens=24, stop=word).text == cut == model.generate("Count from one to ten.", max_tokens=24, stop=["\0never", word]).text
        last = plain.tokens[5]
        assert model.generate("Count from one to ten.", max_tokens=24, stop=[last]).tokens == plain.tokens[:plain.tokens.index(last)]
        both = model.generate("Count from one to ten.", max_tokens=24, stop=[plain.tokens[-1]], stop_text=word)
        assert both.text == cut
        with pytest.raises(InvalidArgumentError, match="enable_thinking: this checkpoint's chat template does not ask for it"):
            model.generate("Hello.", enable_thinking=False)
        with pytest.raises(InvalidArgumentError, match="enable_thinking: it is for messages"):
            model.prompt_ids([1, 2], enable_thinking=True)
        with pytest.raises(InvalidArgumentError, match="no option 'enable_thinking'"):
            model.generate_ids([1, 2], enable_thinking=True)


def test_enable_thinking_reaches_the_template():
    from vivace.text import Text

    with vivace.load_model(model_path(), device="cpu") as model:
        text = model.text
        template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<off>{% endif %}{% if tools %}{{ tools[0].name }}{% endif %}"
        model._text = Text(text.tokenizer, text.bos, text.eos, text.add_bos, template)
        said = {(t, n is not None): text.decode(model.prompt_ids("Hi", enable_thinking=t, tools=n)) for t in (None, True, False) for n in (None, [{"name": "f"}])}
        assert said == {(None, False): "Hi", (True, False): "Hi", (False, False): "Hi<off>", (None, True): "Hif", (True, True): "Hif", (False, True): "Hi<off>f"}
        assert model.generate("Hi", max_tokens=2, enable_thinking=False).prompt_tokens == len(model.prompt_ids("Hi", enable_thinking=False))


# ---- what editors see --------------------------------------------------------------------------------

def test_every_option_is_in_the_types():
    """One that GENERATE reads and Draws does not name would be an error to a type checker."""
    assert set(options.Draws.__annotations__) == set(options.GENERATE)
    assert set(options.Options.__annotations__) == set(options.GENERATE) | set(options.PROMPT)


def test_signatures_have_every_option():
    for name in ("generate", "chat", "stream", "agenerate", "astream", "generate_ids", "generate_batch"):
        shown = inspect.signature(getattr(TextModel, name)).parameters
        named = options.GENERATE if name in ("generate_ids", "generate_batch") else options.GENERATE | options.PROMPT
        assert list(shown)[2:] == list(named) and all(p.kind is p.KEYWORD_ONLY for p in list(shown.values())[2:])
        assert (shown["seed"].default, shown["num_speculative_tokens"].default, shown["priority"].default, shown["temperature"].default) == (0, 4, "interactive", None)


GOOD = '''
import vivace
from vivace.model import Answer, StreamEvent, TextModel

def f(model: TextModel) -> str:
    answer: Answer = model.generate("a", max_tokens=3, temperature=0.5, stop=["x"], enable_thinking=False)
    for chunk in model.stream([{"role": "user", "content": "a"}], seed=1, stop="x", top_p=None):
        c: StreamEvent = chunk
    model.generate_ids([1, 2], stop=[3], logit_bias={1: 2.0}, priority="robot")
    return answer.text + vivace.load_model("x", generation_config=False).chat([{"role": "user", "content": "a"}]).text
'''
WRONG = {'model.generate("a", max_token=3)': 'Unexpected keyword argument "max_token"', 'model.generate("a", max_tokens="3")': 'incompatible type "str"', 'model.stream("a", priority="first")': "incompatible type",
         'model.generate_ids([1], tools=[])': 'Unexpected keyword argument "tools"', 'model.generate("a").txt': '"Answer" has no attribute "txt"', 'model.chat(3)': "incompatible type"}


def test_a_type_checker_reads_the_package(tmp_path):
    """mypy on a caller's file, against the installed package."""
    pytest.importorskip("mypy")
    package = Path(vivace.__file__).parent
    assert (package / "py.typed").exists()
    wrong = list(WRONG)
    (tmp_path / "caller.py").write_text(GOOD + "\ndef g(model: TextModel) -> None:\n" + "".join(f"    {w}\n" for w in wrong))
    done = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", "--show-column-numbers", "--cache-dir", str(tmp_path / "cache"), "caller.py"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=280)
    first = GOOD.count("\n") + 3
    found = {line.split(":")[1]: line for line in done.stdout.splitlines() if ": error:" in line}
    assert sorted(map(int, found)) == list(range(first, first + len(wrong))), done.stdout + done.stderr
    assert all(WRONG[w] in found[str(first + i)] for i, w in enumerate(wrong)), done.stdout
