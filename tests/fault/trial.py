"""One run of real processes that a test may kill, watch, and take up again."""

import json
import signal
import sqlite3
import time
from contextlib import closing

import psutil
from tests.fault import ledger
from tests.fault.life import Process

DEADLINE_S = 60.0
SILENCE_LIMIT_S = 4.0  # a killed node counts as lost after so long
POLL_S = 0.002
NAMES = ("ada", "grace", "linus")

RUN_FILE = """
name = "fault"
seed = 5
output_dir = "{output_dir}"

[model]
kind = "gpt"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
tie_word_embeddings = true
dropout = 0.2

[data]
kind = "text"
path = "text.txt"
sequence_length = 12
validation_fraction = 0.2

[training]
max_steps = {steps}
batch_size = 8
microbatches = 3
learning_rate = 1e-2
lr_scheduler_type = "cosine"
warmup_steps = 4
weight_decay = 0.1
max_grad_norm = 0.5
eval_steps = 4
eval_batches = 2
save_steps = 2

[pipeline]
nodes = {nodes}
stages = {stages}
mode = "{mode}"
gather_timeout_s = 60
silence_limit_s = {silence_limit_s}
"""
STEPS = 15  # five epochs of 19 samples: 8, 8 and 3
SAMPLES, BATCH_SIZE, SEED = 19, 8, 5
TEXT = bytes((i * i // 7 + i % 5) % 251 for i in range(290))


class Trial:
    """The processes of one run in one directory; all of them end with the `with` block."""

    def __init__(self, root):
        self.root = root
        self.run_dir = root / "run"
        self.processes = []
        self.nodes = {}
        self.lives = 0
        root.mkdir(exist_ok=True)
        (root / "text.txt").write_bytes(TEXT)

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        for process in self.processes:
            process.end()

    # --- starting ---------------------------------------------------------------------------------------------

    def _write(self, *, nodes=3, stages=3, steps=STEPS, mode="exact"):
        path = self.root / "fault.toml"
        facts = {"output_dir": self.run_dir, "nodes": nodes, "stages": stages, "steps": steps, "mode": mode}
        path.write_text(RUN_FILE.format(**facts, silence_limit_s=SILENCE_LIMIT_S))
        return path

    def lead(self, *flags, moment=None, **settings):
        """Start a coordinator; it need not be ready when this returns."""
        self.lives += 1
        (self.run_dir / "invite.txt").unlink(missing_ok=True)
        path = self._write(**settings)
        arguments = ("up", path, "--listen", "127.0.0.1:0", "--json", *flags)
        self.coordinator = self._start("coordinator", arguments, self.root / f"coordinator-{self.lives}.txt", moment)
        return self.coordinator

    def join(self, *names, moment=None, patience_s=60):
        """Start nodes once the coordinator listens; of the same name and key as ever."""
        self.wait_until((self.run_dir / "invite.txt").is_file, "it listened")
        for name in names:
            state = self.root / "nodes" / name
            state.parent.mkdir(exist_ok=True)
            options = ("--state", state, "--patience", patience_s, "--device", "cpu", "--threads", 1)
            arguments = ("join", self.run_dir / "invite.txt", "--name", name, "--listen", "127.0.0.1:0", *options)
            self.nodes[name] = self._start(name, arguments, self.root / f"{name}-{self.lives}.txt", moment)

    def _start(self, name, arguments, output, moment):
        output.touch()
        process = Process(name, [*map(str, arguments)], output, moment)
        self.processes.append(process)
        return process

    # --- watching ---------------------------------------------------------------------------------------------

    def wait_until(self, condition, what):
        """Wait for a condition of the files; whoever leads the run must live that long."""
        end = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert self.coordinator.exit_code is None, f"ended before {what}\n{self.said()}"
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.said()}"
            time.sleep(POLL_S)
        return found

    def wait_for_text(self, process, text):
        """Wait until a process, whoever leads, has printed this."""
        end = time.monotonic() + DEADLINE_S
        while text not in process.output.read_text():
            ended = process.exit_code is not None and text not in process.output.read_text()
            assert not ended, f"{process.name} ended before it said {text!r}\n{self.said()}"
            assert time.monotonic() < end, f"waited in vain for {text!r} of {process.name}\n{self.said()}"
            time.sleep(POLL_S)

    def wait_for_halt(self, stage):
        """Wait until the node of a stage has stopped itself; return it."""
        self.wait_for_note("training")
        process = self.nodes[self.holder(stage)]
        halted = psutil.STATUS_STOPPED
        self.wait_until(lambda: psutil.Process(process.pid).status() == halted, f"{process.name} halted")
        return process

    def lines(self):
        """Return what the coordinator of this life has printed so far, as JSON."""
        lines = self.coordinator.output.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for_step(self, number):
        """Wait until so many steps are done."""
        self.wait_until(
            lambda: any(line["event"] == "step" and line["step"] >= number for line in self.lines()), f"step {number}"
        )

    def wait_for_note(self, kind):
        """Wait until the coordinator says something of this kind, and return the sentence."""
        return self.wait_until(lambda: self.note(kind), f"a note of kind {kind}")

    def note(self, kind):
        return next((line["text"] for line in self.lines() if line["event"] == "note" and line["kind"] == kind), None)

    def holder(self, stage):
        """Return the node that holds a stage of the newest plan."""
        with closing(sqlite3.connect(f"{(self.run_dir / 'run.sqlite').as_uri()}?mode=ro", uri=True)) as database:
            (text,) = database.execute("SELECT plan FROM plans ORDER BY generation DESC").fetchone()
        return json.loads(text)["stages"][stage]["contact"]["name"]

    # --- ending -----------------------------------------------------------------------------------------------

    def kill(self, *processes):
        """End processes as nothing but the system can."""
        for process in processes:
            process.send(signal.SIGKILL)
        for process in processes:
            assert process.wait(DEADLINE_S) == -signal.SIGKILL

    def code(self, process, deadline_s=DEADLINE_S):
        """Wait until a process ends by itself and return its exit code."""
        code = process.wait(deadline_s)
        assert code is not None, f"{process.name} did not end\n{self.said()}"
        return code

    def codes(self):
        """Wait until all nodes end by themselves and return their exit codes by name."""
        return {name: self.code(node) for name, node in self.nodes.items()}

    def ends_without(self, stage):
        """The node of a stage has been killed, and the run ends because of that: everybody says so."""
        assert self.code(self.coordinator) == 1, self.said()
        victim = self.holder(stage)
        assert self.codes() == {name: -signal.SIGKILL if name == victim else 1 for name in self.nodes}, self.said()
        reason = self.note("failed")
        assert f"node {victim} (stage {stage}, block {stage}) is lost: no heartbeat for " in reason
        for name, node in self.nodes.items():
            assert name == victim or reason in node.output.read_text()
        return reason

    def finish(self):
        """Wait for success of the coordinator and of every node."""
        assert self.code(self.coordinator) == 0, self.said()
        assert set(self.codes().values()) == {0}, self.said()

    def train(self, *flags, names=NAMES, **settings):
        """Start a coordinator and nodes, and let them train to the end."""
        self.lead(*flags, nodes=len(names), **settings)
        self.nodes = {}
        self.join(*names)
        self.finish()

    def said(self):
        """Return everything that anybody has printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.root.glob("*-*.txt")))

    # --- judging ----------------------------------------------------------------------------------------------

    def check(self, reference, *, relative=0.0):
        """The run is over, and what it left is what a run leaves that nobody disturbed."""
        steps, undisturbed = ledger.ledger(self.run_dir), ledger.ledger(reference)
        ledger.check_samples(steps, samples=SAMPLES, batch_size=BATCH_SIZE, seed=SEED)
        ledger.check_attempts(self.run_dir)
        ledger.check_same_curve(steps, undisturbed, relative=relative)
        assert ledger.check_checkpoints(self.run_dir)[-1] == STEPS
        assert ledger.unfinished(self.run_dir) == []
        assert ledger.unfinished(self.root / "nodes") == []
        held_out, expected = ledger.held_out(self.run_dir), ledger.held_out(reference)
        # one may be missing where somebody was killed between a checkpoint and the evaluation after the same step
        assert {STEPS - 1} <= held_out.keys() <= expected.keys()
        assert all(abs(loss - expected[step]) <= relative * loss for step, loss in held_out.items())
        model = "model.safetensors"
        ledger.check_same_model(self.run_dir / model, reference / model, relative=10 * relative)
