"""compare.py's order and times, with small programs instead of peers: python3 -m unittest test_compare

Nothing but Python is needed. Programs that hang do so for an hour, so that only compare.py can end them, and the times of programs that
must not be ended are minutes.
"""

import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock

import account
import compare

FIGURE = {"step_sec": 2.0, "tokens": 64, "model_flops": 4e12, "executed_flops": 5e12, "device_bytes": 0, "peak_rss_bytes": 0, "steps": 1,
          "model": "tiny", "sequence_len": 32, "precision": "bf16", "masters": "bf16", "moments": "fp32", "clipping": "exact",
          "state_bytes": 14}
HANG = "import time; time.sleep(3600)"


def figure(**changes):
    return f"print('''{json.dumps(FIGURE | changes)}''')"


def program(*lines):
    return [sys.executable, "-c", "\n".join(["import sys", *lines])]


def arguments(*argv):
    return compare.arguments(["--model", "tiny", "--turns", "1", *argv])


class Case(unittest.TestCase):
    def setUp(self):
        self.said = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def results(self, rows, *argv):
        return {name: turns[0] for name, turns in compare.run_all(rows, arguments(*argv)).items()}


class TestTimes(Case):
    def test_a_start_that_hangs_costs_its_own_seconds(self):
        stuck = program("print('start: import 1.0 s', file=sys.stderr, flush=True)", HANG)
        got = self.results([compare.Row("stuck", stuck, timeout=600, start_timeout=3), compare.Row("next", program(figure()))])
        self.assertRegex(got["stuck"]["skipped"], r"no step after 3 s \(import 1.0 s; then it was ended\)")
        self.assertIn("start: import", got["stuck"]["stderr"])
        self.assertEqual(got["next"]["step_sec"], 2)

    def test_a_first_step_ends_the_time_of_the_start(self):
        step = program("print('step 1: 0.1 s', file=sys.stderr, flush=True)", "import time; time.sleep(4)", figure())
        self.assertEqual(self.results([compare.Row("slow", step, timeout=600, start_timeout=3)])["slow"]["step_sec"], 2)

    def test_steps_that_were_made_are_kept(self):
        long = program("print('step 1: 0.1 s', file=sys.stderr)", figure(), "sys.stdout.flush()", HANG)
        got = self.results([compare.Row("long", long, timeout=3)])["long"]
        self.assertEqual(got["step_sec"], 2)
        self.assertIn("ended after 1 of its steps: it took more than 3 s", got["notes"])

    def test_a_row_that_does_not_fit_is_not_begun(self):
        rows = [compare.Row("large", program(HANG), sec=500), compare.Row("small", program(figure()), sec=5)]
        got = self.results(rows, "--budget", "400")
        self.assertRegex(got["large"]["skipped"], r"left out: it takes 500 s, and of the budget of 400 s \d+ s were left")
        self.assertEqual(got["small"]["step_sec"], 2)

    def test_the_budget_ends_the_running_program(self):
        self.assertEqual(self.results([compare.Row("stuck", program(HANG))], "--budget", "3")["stuck"]["skipped"], "the budget was over")

    def test_what_runs_during_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            there = str(pathlib.Path(folder) / "there")
            needs = program("import os, time", f"while not os.path.exists({there!r}): time.sleep(0.01)", figure())
            with unittest.mock.patch.dict(compare.MEANWHILE, writes=f"open({there!r}, 'w')\n{HANG}"):
                got = self.results([compare.Row("needs", needs, meanwhile="writes")])
            self.assertEqual(got["needs"]["step_sec"], 2)

    def test_what_a_program_started_ends_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = pathlib.Path(folder) / "pid"
            child = f"import subprocess; c = subprocess.Popen([sys.executable, '-c', {HANG!r}])"
            self.results([compare.Row("parent", program(child, f"open({str(pid)!r}, 'w').write(str(c.pid))", figure()))])
            state = pathlib.Path(f"/proc/{pid.read_text()}/stat")
            while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.01)  # a killed process is there for a moment


class TestFailures(Case):
    def test_a_compilation_that_was_ended_holds_up_no_other(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict("os.environ", TORCH_EXTENSIONS_DIR=folder):
            lock = pathlib.Path(folder) / "py312" / "cpu_adam" / "lock"
            other = lock.with_name("cpu_adam.o")
            lock.parent.mkdir(parents=True)
            lock.touch()
            other.touch()
            self.results([compare.Row("stuck", program(HANG), timeout=1)])
            self.assertFalse(lock.exists())
            self.assertTrue(other.exists())

    def test_the_end_of_what_a_row_wrote_is_kept(self):
        got = self.results([compare.Row("broken", program("sys.exit('x' * 3000 + ' the reason')"))])["broken"]
        self.assertEqual(len(got["stderr"]), 2000)
        self.assertTrue(got["failed"].startswith("exit status 1: "))
        self.assertTrue(got["stderr"].strip().endswith("the reason"))

    def test_a_program_that_is_not_there(self):
        self.assertIn("No such file", self.results([compare.Row("none", ["/no/such/program"])])["none"]["failed"])

    def test_verdict(self):
        one = {"resident": [FIGURE], "millrace": [FIGURE]}
        self.assertEqual(compare.verdict(one), "")
        self.assertIn("differently", compare.verdict(one | {"megatrain": [FIGURE | {"model_flops": 5e12}]}))
        other = one | {"a, 128 tokens: megatrain": [FIGURE | {"tokens": 128, "model_flops": 8e12}]}
        self.assertEqual(compare.verdict(other), "", "other steps have other FLOPs")
        self.assertEqual(compare.verdict(one | {"a, 128 tokens: millrace --stream auto": [{"failed": "no"}]}),
                         "a, 128 tokens: millrace --stream auto: no")
        self.assertEqual(compare.verdict({"resident": [{"skipped": "no GPU"}]}), "no program gave a figure")


class TestRows(Case):
    def test_limits(self):
        args = arguments("--timeout", "90", "--timeout", "mega*=40", "--start-timeout", "resident=7", "--peers", "megatrain", "resident")
        ours, mega, resident = compare.rows(args)
        self.assertEqual((ours.timeout, ours.sec, ours.start_timeout), (90, 1, float("inf")))
        self.assertEqual((mega.timeout, mega.sec), (40, 40), "its own seconds must be left")
        self.assertEqual((resident.timeout, resident.start_timeout), (90, 7))
        with self.assertRaises(SystemExit):
            arguments("--timeout", "resident=soon")

    def test_the_plan(self):
        plan = str(compare.HERE / "one_call.json")
        args = compare.arguments(["--plan", plan, "--memory-host", "117"])
        rows = list(compare.rows(args))
        self.assertEqual(len({row.name for row in rows}), len(rows))
        self.assertEqual(rows[0].name, "qwen2.5-7b, 32768 tokens: millrace --stream auto")
        self.assertTrue(rows[0].ours)
        self.assertIn("117GiB", rows[0].command)
        self.assertNotIn("--memory-device", rows[0].command)
        self.assertFalse(rows[3].ours)
        self.assertEqual((rows[3].sec, rows[3].timeout, rows[3].start_timeout), (90, 145, 90))
        self.assertEqual(rows[1].command[-10:], ["--shape", "qwen2.5-7b", "--sequence-len", "2048", "--tokens", "32768", "--steps", "2",
                                                 "--warmup", "1"])
        known = {compare.OURS, *compare.PEERS, *compare.FROM_FOLDER}
        for entry in json.loads(pathlib.Path(plan).read_text())["rows"]:
            self.assertIn(entry["program"], known)
            account.config_of(entry["shape"])
        few = list(compare.rows(compare.arguments(["--plan", plan, "--only", "*131072*", "--peers-only"])))
        self.assertEqual({row.ours for row in few}, {False})
        self.assertTrue(all("131072 tokens" in row.name for row in few))

    def test_a_device_that_is_too_small(self):
        got = self.results([compare.Row("resident", program(HANG), needs_gib=122)], "--device-has", "70")
        self.assertEqual(got["resident"]["skipped"], "left out: it needs 122 GiB of the device")

    def test_a_pack(self):
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder)
            (there / "site").mkdir()
            (there / "site" / "only_in_the_pack.py").write_text("value = 3\n")
            (there / "megatrain").mkdir()
            with tarfile.open(there / "peers.tar.xz", "w:xz") as tar:
                for name in ("site", "megatrain"):
                    tar.add(there / name, name)
            args = arguments("--pack", str(there / "peers.tar.xz"))
            with tempfile.TemporaryDirectory() as unpacked:
                compare.unpack(args, unpacked)
                got = compare.run(compare.Row("a", program("import only_in_the_pack", figure())), args)
                self.assertEqual(got.get("failed"), None)
                self.assertEqual(args.folders["megatrain"], str(pathlib.Path(unpacked) / "megatrain"))


class TestAccount(unittest.TestCase):
    def test_recomputed_products(self):
        config = account.config_of("qwen2.5-7b")
        model, nothing = account.flops(config, 4096, 2048)
        _, ffn = account.flops(config, 4096, 2048, "ffn")
        same, block = account.flops(config, 4096, 2048, "block")
        self.assertEqual(model, same)
        self.assertEqual(ffn - nothing, 28 * 2 * 4096 * 3584 * 2 * 18944)
        self.assertLess(ffn, block)


@unittest.skipUnless(importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"), "needs PyTorch")
class TestNeeds(unittest.TestCase):
    def test_llmq(self):
        import peer_llmq

        config = account.config_of("qwen2.5-7b")
        self.assertEqual(peer_llmq.state_bytes(config, False), 8 * account.parameters(config))
        for peer, gib, rows, recomputed in [("llmq-bf16", 79, 4, ""), ("llmq-fp8", 79, 8, "ffn"), ("llmq-bf16", 139, 16, ""),
                                            ("llmq-fp8", 139, 16, "")]:
            got, settings = peer_llmq.choose(config, 512, 1024, gib << 30, peer)
            self.assertEqual((got, settings.again), (rows, recomputed), f"{peer}, {gib} GiB")
        with self.assertRaises(peer_llmq.Skipped):
            peer_llmq.choose(config, 16, 2048, 40 << 30, "llmq-bf16")

    def test_megatrain_pins_powers_of_two(self):
        import peer_megatrain

        self.assertEqual([peer_megatrain.pinned_bytes(n) for n in (1, 512, 513, 233_057_792)], [2, 1024, 2048, 512 << 20])
        config = account.config_of("qwen2.5-7b")
        pinned = (28 + 14) * (512 << 20) + 2 * (2 << 30)
        self.assertEqual(peer_megatrain.host_bytes(config, False), 8 * account.parameters(config) + pinned)
        self.assertEqual(peer_megatrain.host_bytes(config, True), 12 * account.parameters(config) + pinned)
        self.assertFalse(peer_megatrain.by_deepspeed(config, peer_megatrain.host_bytes(config, True)), "no room for anything else")


if __name__ == "__main__":
    unittest.main()
