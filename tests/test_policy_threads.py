"""One policy, many threads."""
import threading

from tests.test_policy import load, observation


def test_threads_take_turns():
    """S1-2: calls of several threads on one policy queue; each gets its own observation's actions."""
    given = observation("pi0_tiny", "a")
    with load("pi0", "pi0_tiny", "a") as model:
        alone = [model.predict(**given | dict(noise=None, seed=s)) for s in range(4)]
        wrong = []

        def work(k):
            for n in range(5):
                s = (k + n) % 4
                if n == 3:
                    model.observe(**given)
                elif (model.predict(**given | dict(noise=None, seed=s)) != alone[s]).any():
                    wrong.append((k, s))

        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not wrong and not any(t.is_alive() for t in threads)
