"""`vivace demo arm`: a simulated arm at 30 Hz, its policy behind a socket that is slow, uneven, loses segments and breaks.

MuJoCo moves the arm and renders what its two cameras see; vivace.PolicyHost, which `vivace serve-policy` is, answers; vivace.RobotClient drives."""
from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import vivace
from vivace.demo import arm, picture, reach, sim
from vivace.demo.link import FAULTS, Link
from vivace.demo.weights import unpacked
from vivace.errors import InvalidArgumentError

FOLDER = Path(__file__).parent / "tiny-pi05-arm"   # the tensors that differ from tiny-pi05's
HORIZON = 16         # targets of a chunk, a tick each
TURN, GAIN = 0.05, 0.15   # of the controller that it learnt from: most that a target moves in a tick, rad; else a share of what is left
MAX_STEP = 0.08      # rad, of the joints' targets from tick to tick, whatever happens
LIMIT = 150          # ticks of an episode
HELD = 10            # ticks that the tip stays in the thing, then it is reached
STEPS = 4            # of the flow
MOST = 1000          # episodes
FILMED, FILM_SIDE, FILM_EVERY = 3, 160, 3


def wanted(q, goal):
    """The controller's next HORIZON targets as steps from joints q [3]: [HORIZON, 3]."""
    at, out = np.asarray(q, np.float64), []
    for _ in range(HORIZON):
        at = at + np.clip((goal - at) * GAIN, -TURN, TURN)
        out.append(at - q)
    return np.stack(out)


@dataclass
class Episode:
    seed: int
    words: str
    link: str
    reached: bool = False
    targets: list = field(default_factory=list)   # [3] a tick, the first is where the arm stood
    joints: list = field(default_factory=list)    # as measured
    sources: list = field(default_factory=list)   # of the ticks
    clamped: int = 0
    answered: int = 0
    failed: int = 0
    connections: int = 0
    late: int = 0                                 # ticks that began a tenth of a period late
    latency: list = field(default_factory=list)   # s of the robot's clock, from question to answer
    frames: list = field(default_factory=list)    # of the picture

    @property
    def steps(self) -> int:
        return len(self.sources)

    @property
    def largest_step(self) -> float:
        """Of the targets, from tick to tick, rad."""
        return float(np.abs(np.diff(np.array(self.targets), axis=0)).max()) if self.sources else 0.0


class Clock:
    """The robot's: `pace` of its seconds a second."""

    def __init__(self, pace: float):
        self.pace = pace

    def monotonic(self) -> float:
        return time.monotonic() * self.pace

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.pace)


def load(device="auto", precision="auto", batch=1, threads=0, horizon=0, steps=STEPS):
    """The policy: actions are targets of the joints. horizon, steps: 0 is the checkpoint's. Errors: as vivace.load_model() and weights.unpacked()."""
    return vivace.load_model(unpacked(FOLDER, reach.FOLDER), config="pi05", num_views=len(sim.CAMERAS), prompt_tokens=reach.WORDS, batch=batch, action_horizon=horizon, num_steps=steps, delta=[True] * arm.JOINTS, device=device, precision=precision, threads=threads)


def observation(world: sim.Sim, cameras) -> dict:
    """What the robot sends; the words go by set_prompt()."""
    return {"images": dict(zip(sim.CAMERAS, cameras.frames())), "state": world.joints}


def episode(world: sim.Sim, cameras, robot, e: Episode, scene: arm.Scene, clock: Clock, film=None) -> None:
    """One: until the tip has stayed in the thing, or LIMIT ticks are over."""
    world.begin(scene)
    robot.set_prompt(e.words)
    e.targets.append(world.joints.astype(np.float32))
    e.joints.append(world.joints)
    robot.begin(e.targets[0], episode=f"episode-{e.seed}-{e.link}", seed=e.seed)
    begun, inside = clock.monotonic(), 0
    try:
        while e.steps < LIMIT and not e.reached:
            due = begun + e.steps / sim.HZ
            clock.sleep(max(0.0, due - clock.monotonic()))
            e.late += clock.monotonic() - due > 0.1 / sim.HZ
            tick = robot.tick(lambda: observation(world, cameras))
            world.step(tick.action)
            e.targets.append(tick.action)
            e.joints.append(world.joints)
            e.sources.append(tick.source)
            e.clamped += tick.clamped
            inside = inside + 1 if world.inside() else 0
            e.reached = inside >= HELD
            if film is not None and (e.steps % FILM_EVERY == 1 or e.reached):
                e.frames.append(picture.frame(film.frames(), e.words, e.reached))
    finally:
        report = robot.end()
    e.answered, e.failed, e.connections = report.answered, report.failed, report.connections
    rows = json.loads(Path(report.files[1]).read_text())["questions"]
    e.latency = [r["answered"] * clock.pace - r["asked"] for r in rows if r["answer"] is not None]
    for file in report.files:
        Path(file).unlink()


def _paced(pace: float) -> float:
    if not 0.01 <= pace <= 10:
        raise InvalidArgumentError(f"pace: wanted 0.01 to 10, got {pace}")
    return pace


def run(policy, seeds, *, links=tuple(FAULTS), goal=None, cameras="auto", pace=1.0, join="blend", max_step=MAX_STEP, each=None, filmed=0) -> tuple[list[Episode], str]:
    """Episodes, one after another, each over the next of `links` (names of link.FAULTS); and what the cameras became. A scene depends on its seed
    alone. each: called with every episode that ended. The first `filmed` keep frames.
    Errors: InvalidArgumentError, UnsupportedError (no MuJoCo), FailedPreconditionError (cameras), those of PolicyHost and RobotClient."""
    if not links or any(name not in FAULTS for name in links):
        raise InvalidArgumentError(f"link: wanted some of {', '.join(FAULTS)}, got {list(links)}")
    colour, clock, done = reach.colour_number(goal), Clock(_paced(pace)), []
    world = sim.Sim()
    eyes = sim.cameras(world, reach.SIDE, cameras)
    film = sim.cameras(world, FILM_SIDE, eyes.way) if filmed else None
    try:
        with tempfile.TemporaryDirectory(prefix="vivace-arm-") as kept, vivace.PolicyHost(policy, cameras=sim.CAMERAS, port=0) as host:
            for i, seed in enumerate(seeds):
                name = links[i % len(links)]
                scene = arm.scene(seed, colour)
                e = Episode(seed, reach.words_of(scene), name)
                with Link(host.port, FAULTS["clean"], seed=seed, pace=pace) as link:
                    # The first connection is undisturbed; the fault begins with the episode, for connections that come later too.
                    with vivace.RobotClient("127.0.0.1", link.port, hz=sim.HZ, join=join, max_step=max_step, ask_after=2, max_action_age=1.5, watchdog=3.0, answer=3.0 / pace, wait=0.05 / pace, most_wait=0.4 / pace,
                                            record=kept, clock=clock) as robot:
                        link.begin(FAULTS[name])
                        episode(world, eyes, robot, e, scene, clock, film if len(done) < filmed else None)
                done.append(e)
                if each:
                    each(e)
    finally:
        eyes.close()
        if film is not None:
            film.close()
    return done, eyes.way


def show(*, device="auto", precision="auto", threads=0, episodes=10, seed=0, goal=None, link="all", cameras="auto", pace=1.0, out=None, say=None) -> dict:
    """What `vivace demo arm` does; its facts. link: a name of link.FAULTS, or "all" in turn. out: an animated picture (.apng, .png) or the targets,
    where they came from and how long answers took (.svg). `say` gets its lines. Errors: those of run(), reach.check_out(), vivace.load_model()."""
    if not 1 <= episodes <= MOST:
        raise InvalidArgumentError(f"episodes: wanted 1 to {MOST}, got {episodes}")
    if not 0 <= seed < reach.MOST_SEED:
        raise InvalidArgumentError(f"seed: wanted 0 to {reach.MOST_SEED - 1}, got {seed}")
    if link != "all" and link not in FAULTS:
        raise InvalidArgumentError(f"link: wanted all or one of {', '.join(FAULTS)}, got {link!r}")
    _paced(pace)
    if cameras not in sim.WAYS:
        raise InvalidArgumentError(f"cameras: wanted one of {', '.join(sim.WAYS)}, got {cameras!r}")
    reach.colour_number(goal)
    if out is not None:
        reach.check_out(out, (".apng", ".png", ".svg"))
    sim.mujoco()
    drawn = out is not None and Path(out).suffix.lower() != ".svg"
    say = say or (lambda line: None)

    def each(e):
        say(f'episode {e.seed}, link {e.link}: "{e.words}": ' + (f"reached after {e.steps / sim.HZ:.1f} s" if e.reached else f"not within {LIMIT / sim.HZ:.0f} s")
            + f"; {e.answered} answers, {e.failed} failed, largest step {e.largest_step:.3f} rad")

    with load(device, precision, threads=threads) as policy:
        facts = policy.report()
        ended, way = run(policy, range(seed, seed + episodes), links=tuple(FAULTS) if link == "all" else (link,), goal=goal, cameras=cameras, pace=pace, each=each, filmed=FILMED if drawn else 0)
    reached = [e for e in ended if e.reached]
    latency = [v for e in ended for v in e.latency]
    largest = max(e.largest_step for e in ended)
    say(f"cameras: {'rendered by MuJoCo' if way == 'gl' else 'drawn by vivace.demo.arm, of the joints that MuJoCo says'}")
    say(f"reached {len(reached)} of {len(ended)} ({len(reached) / len(ended):.0%})" + (f", after {np.mean([e.steps for e in reached]) / sim.HZ:.1f} s on average" if reached else ""))
    for name in dict.fromkeys(e.link for e in ended):
        of = [e for e in ended if e.link == name]
        say(f"  link {name:<6} reached {sum(e.reached for e in of)} of {len(of)}, {sum(e.connections for e in of)} new connections, {sum(e.failed for e in of)} questions failed")
    say(f"largest step of a target {largest:.4f} rad, bound {MAX_STEP}; {sum(e.clamped for e in ended)} of {sum(e.steps for e in ended)} ticks bounded")
    if latency:
        p50, p99 = (float(np.quantile(latency, q)) * 1e3 for q in (0.5, 0.99))
        say(f"from question to answer, policy on {facts['device']} in {facts['precision']}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(latency)} answers" + ("" if pace == 1 else f", of the robot's clock, which went {pace:g} times as fast"))
        for line in reach.histogram(latency):
            say(line)
    if out is not None:
        if drawn:
            frames = [f for e in ended[:FILMED] for f in e.frames]
            waits = [1500 if i + 1 == len(e.frames) else round(1000 * FILM_EVERY / sim.HZ) for e in ended[:FILMED] for i in range(len(e.frames))]
            say(f"{out}: {picture.write(out, frames, waits):,} bytes")
        else:
            from vivace.files import new_file

            with new_file(out) as f:
                f.write(chart(ended, latency).encode())
            say(f"{out}: {len(ended)} episodes")
    return {"device": facts["device"], "precision": facts["precision"], "cameras": way, "success": len(reached) / len(ended), "largest_step": largest, "max_step": MAX_STEP,
            "latency_ms": {"p50": p50, "p99": p99} if latency else None, "out": None if out is None else str(out),
            "episodes": [{"seed": e.seed, "link": e.link, "words": e.words, "reached": e.reached, "seconds": e.steps / sim.HZ, "answered": e.answered, "failed": e.failed, "connections": e.connections, "clamped": e.clamped, "late": e.late,
                          "largest_step": e.largest_step, "sources": {s: e.sources.count(s) for s in dict.fromkeys(e.sources)}} for e in ended]}


_COLOURS = {"chunk": "#ffffff", "blend": "#dcebf5", "hold": "#f6dfb8", "stopped": "#efb3a5"}
_LINES = ("#0b6e99", "#b5482a", "#4b7f2c")
_WIDTH, _HIGH, _LEFT, _ROW = 900, 96, 64, 134


def chart(episodes, latency) -> str:
    """SVG: of up to four episodes each joint's target and its measured angle over time, on the colour of where the tick's action came from; how long answers took."""
    shown = episodes[:4]
    longest = max(e.steps for e in shown)
    at = lambda tick: _LEFT + (_WIDTH - _LEFT - 12) * tick / longest  # noqa: E731
    low, high = min(arm.LOW), max(arm.HIGH)
    body = ['<rect width="100%" height="100%" fill="#fff"/>']
    for row, e in enumerate(shown):
        top = 22 + row * _ROW
        y = lambda v: top + _HIGH * (high - v) / (high - low)  # noqa: E731,B023
        body.append(f'<text x="{_LEFT}" y="{top - 6}">link {e.link}: {e.words}{": reached" if e.reached else ""}; {e.answered} answers, {e.failed} failed, largest step {e.largest_step:.3f} rad</text>')
        first = 0
        for i in range(1, e.steps + 1):  # runs of one source
            if i == e.steps or e.sources[i] != e.sources[first]:
                body.append(f'<rect x="{at(first):.1f}" y="{top}" width="{at(i) - at(first):.1f}" height="{_HIGH}" fill="{_COLOURS[e.sources[first]]}"/>')
                first = i
        for joint, colour in enumerate(_LINES):
            for path, width in ((e.targets, 1.6), (e.joints, 0.7)):
                points = " ".join(f"{at(i):.1f},{y(v[joint]):.1f}" for i, v in enumerate(path))
                body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        for second in range(longest // sim.HZ + 1):
            body.append(f'<text x="{at(second * sim.HZ):.1f}" y="{top + _HIGH + 12}" text-anchor="middle" fill="#777">{second} s</text>')
    top = 22 + len(shown) * _ROW
    body.append(f'<text x="{_LEFT}" y="{top}">targets thick, measured thin, of yaw, shoulder and elbow; ticks from a chunk white, blended blue, held yellow, stopped red</text>')
    if latency:
        ms, count = np.asarray(latency) * 1e3, 40
        edges = np.linspace(0, max(1.0, float(ms.max())), count + 1)
        bins = np.histogram(ms, edges)[0]
        wide = (_WIDTH - _LEFT - 12) / count
        for i, n in enumerate(bins):
            h = 60 * n / bins.max()
            body.append(f'<rect x="{_LEFT + i * wide:.1f}" y="{top + 72 - h:.1f}" width="{wide - 1:.1f}" height="{h:.1f}" fill="#0b6e99"/>')
        for share in (0, 0.25, 0.5, 0.75, 1):
            body.append(f'<text x="{_LEFT + share * (_WIDTH - _LEFT - 12):.1f}" y="{top + 86}" text-anchor="{"end" if share == 1 else "middle"}" fill="#777">{share * edges[-1]:.0f} ms</text>')
        body.append(f'<text x="{_LEFT}" y="{top + 102}">from question to answer, of {len(ms)} answers</text>')
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top + (112 if latency else 10)}" font-family="sans-serif" font-size="11">', *body, "</svg>", ""])
