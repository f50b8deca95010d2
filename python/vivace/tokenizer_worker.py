"""Runs a tokenizer of unusual rules for tokenizer_bounded.py, which starts this file as a process. Imports no part of vivace but
what lies beside it, by its path."""
import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("bounded_worker", Path(__file__).with_name("bounded_worker.py"))
bounded_worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bounded_worker)


def prepare(file, limited):
    file.seek(0)
    source = file.read()
    limited()
    from tokenizers import Tokenizer

    pair = bounded_worker.beside("tokenizer_pair").Pair(Tokenizer.from_buffer(source))
    calls = {"notes": pair.notes, "added": pair.added, "unknown": pair.unknown, "open": pair.open, "encode": pair.encode, "decode": pair.decode,
             "get_vocab_size": pair.special.get_vocab_size, "id_to_token": pair.special.id_to_token, "token_to_id": pair.special.token_to_id}

    def answer(request) -> dict:
        name, args, most = request["call"], request["args"], request["most"]
        if name == "encode" and pair.plain is None:
            return {"closed": True}  # a new process, after one that overstepped
        try:
            value = calls[name](*args)
        except MemoryError:
            return {"limit": "it needs more memory than it may have"}
        except BaseException as e:  # the library panics at some input
            return {"error": f"the tokenizers library refuses it: {e}"[:500]}
        size = len(value[0]) if name == "encode" else len(value) if isinstance(value, (str, list)) else 0
        return {"limit": f"it made {size} of {name}, at most {most} are accepted"} if size > most else {"value": value}
    return answer


if __name__ == "__main__":
    bounded_worker.serve(prepare)
