package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/verbs"
)

func TestTrain(t *testing.T) {
	w := newWorkshop(t)
	r := invoke(t, "train", w.path("run.yaml"), "--json", "--trace", "--set", "memory.device=2MiB",
		"--set", "eval.datasets=[{path: "+w.path("data/b.txt")+", type: text}]").must(t)
	s := jsonOf[train.Summary](t, r.stdout)
	if s.Steps != 3 || s.Tokens == 0 || s.EvalBefore == nil || s.EvalAfter == nil || s.UploadBytes == 0 || s.Model != w.path("out/model") {
		t.Errorf("summary %+v", s)
	}
	want := []string{"out", "out/checkpoints", "out/checkpoints/.lock", "out/checkpoints/step-000003", "out/metrics.jsonl",
		"out/model", "out/model/README.md", "out/model/config.json", "out/model/generation_config.json", "out/model/model.safetensors",
		"out/model/tokenizer.json", "out/model/tokenizer_config.json", "out/plan.json",
		"out/run.json", "out/run.yaml", "out/trace.json"}
	got := slices.DeleteFunc(w.files("out"), func(path string) bool { return strings.HasPrefix(path, "out/checkpoints/step-000003/") })
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("output directory (-want +got):\n%s", d)
	}
	if n := strings.Count(w.read("out/metrics.jsonl"), "\n"); n != 4 {
		t.Errorf("%d records of metrics for the evaluation before and 3 steps", n)
	}
	if n := strings.Count(r.stderr, "\nstep "); n != 3 {
		t.Errorf("progress:\n%s", r.stderr)
	}

	// The resolved run file gives the same numbers again, to the bit.
	again := jsonOf[train.Summary](t, invoke(t, "train", w.path("out/run.yaml"), "--json", "--set", "output_dir="+w.path("again")).must(t).stdout)
	if again.LastLoss != s.LastLoss || *again.EvalAfter != *s.EvalAfter {
		t.Errorf("again: losses %v and %v, want %v and %v", again.LastLoss, *again.EvalAfter, s.LastLoss, *s.EvalAfter)
	}
	if w.read("again/model/model.safetensors") != w.read("out/model/model.safetensors") {
		t.Error("again: other weights")
	}

	// Started again, it has ended; and what is there is not overwritten by another run.
	r = invoke(t, "train", w.path("run.yaml")).must(t)
	if !strings.Contains(r.stderr, "this run has ended: all 3 steps are done") {
		t.Errorf("an ended run: %s", r.stderr)
	}
	r = invoke(t, "train", w.path("run.yaml"), "--set", "resume=never")
	if r.status != exitBadRequest || !strings.Contains(r.stderr, "output_dir") {
		t.Errorf("over an earlier run: status %d, %s", r.status, r.stderr)
	}
}

func TestTrainPrintsSummary(t *testing.T) {
	w := newWorkshop(t)
	r := invoke(t, "train", w.path("run.yaml"), "--set", "max_steps=1").must(t)
	for _, row := range []string{"steps", "training loss", "streamed", "lanes busy", "peak memory", "model"} {
		if !strings.Contains(r.stdout, row) {
			t.Errorf("no %q in\n%s", row, r.stdout)
		}
	}
}

// A summary says of a loss that it rose where many steps, or held-out documents, show it: not for a few steps.
func TestRise(t *testing.T) {
	const rose = ": it rose; a lower learning_rate or fewer steps may help\n"
	w := newWorkshop(t)
	diverges := []string{"train", w.path("run.yaml"), "learning_rate=5", "max_grad_norm=0", "resume=never"}
	for name, c := range map[string]struct {
		more []string
		rose bool
	}{
		"many steps":                    {[]string{"max_steps=40", "warmup_steps=39"}, true},
		"few steps":                     {[]string{"max_steps=6"}, false},
		"few steps, held-out loss":      {[]string{"max_steps=6", "eval.every=6", "eval.datasets=[{path: " + w.path("data/b.txt") + ", type: text}]"}, true},
		"a rate of which nothing rises": {[]string{"max_steps=40", "learning_rate=0.0001"}, false},
	} {
		r := invoke(t, append(slices.Concat(diverges, c.more), "output_dir="+filepath.Join(t.TempDir(), "out"))...).must(t)
		if strings.Contains(r.stdout, rose) != c.rose {
			t.Errorf("%s: %s", name, r.stdout)
		}
	}
	text := func(s train.Summary) (all string) {
		stepRows(func(name, format string, args ...any) { all += name + " " + fmt.Sprintf(format, args...) + "\n" }, &s, 6)
		return all
	}
	before, after := 1.4037, 1.3607
	s := train.Summary{FirstLoss: 1.1296, LastLoss: 1.4665, EvalBefore: &before, EvalAfter: &after, Trend: &train.LossTrend{First: 1.1, Last: 1.4, Steps: 3, Rose: true}}
	if got := text(s); strings.Contains(got, "rose") {
		t.Errorf("the held-out loss fell: %s", got)
	}
	s = train.Summary{Rewards: &train.RewardTrend{First: 0.01, Last: 0.25, Steps: 6}, Trend: s.Trend, RolloutSec: 2,
		RolloutBytes: 3 << 30, TrainBytes: 5 << 30}
	got := text(s)
	if strings.Contains(got, "training loss") || !strings.Contains(got, "reward 0.0100 -> 0.2500, means of 6 steps\n") ||
		!strings.Contains(got, "answers 2.0 s of sampling and judging\n") ||
		!strings.Contains(got, "by phase 3.00 GiB while answers were sampled, 5.00 GiB after steps\n") {
		t.Errorf("of a policy it says: %s", got)
	}
}

// Sets of eval have a line each, and the first line is of all of them.
func TestEvalSets(t *testing.T) {
	w := newWorkshop(t)
	w.write("data/c.txt", "no wheel turns here")
	args := func(more ...string) []string {
		return append([]string{"eval", "--model", w.path("model"), "--tokenizer", "bytes", "--sequence-len", "32",
			"--compute", "f32", "--data", w.path("data/b.txt"), "--data", w.path("data/c.txt")}, more...)
	}
	all := jsonOf[train.Loss](t, invoke(t, args("--json")...).must(t).stdout)
	sets := jsonOf[train.Loss](t, invoke(t, args("--json", "--eval-set", "task,forget")...).must(t).stdout)
	b, c := sets.Sets["task"], sets.Sets["forget"]
	if all.Sets != nil || len(sets.Sets) != 2 || math.Abs(sets.Loss-all.Loss) > 1e-9 || b.Loss == c.Loss ||
		b.TargetTokens+c.TargetTokens != all.TargetTokens ||
		math.Abs(b.Loss*float64(b.TargetTokens)+c.Loss*float64(c.TargetTokens)-all.Loss*float64(all.TargetTokens)) > 1e-6 {
		t.Errorf("without labels %+v, with labels %+v", all, sets)
	}
	text := invoke(t, args("--eval-set", "task,forget")...).must(t).stdout
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], fmt.Sprintf("loss %.4f", all.Loss)) ||
		!strings.HasPrefix(lines[1], fmt.Sprintf("forget: loss %.4f", c.Loss)) || !strings.HasPrefix(lines[2], "task: loss") {
		t.Errorf("it prints %s", text)
	}
	for _, of := range [][2]string{{"task", "--eval-set has 1 label, and --data names 2 files"},
		{"a/b,c", "letters from a to z"}} {
		if r := invoke(t, args("--eval-set", of[0])...); r.status != exitBadRequest || !strings.Contains(r.stderr, of[1]) {
			t.Errorf("--eval-set %s: status %d, %s", of[0], r.status, r.stderr)
		}
	}
}

func TestPlan(t *testing.T) {
	w := newWorkshop(t)
	text := invoke(t, "plan", w.path("run.yaml"), "--set", "memory.device=2MiB").must(t).stdout
	for _, word := range []string{"qwen3", "weight slot", "first moments", "tokens/s"} {
		if !strings.Contains(text, word) {
			t.Errorf("no %q in\n%s", word, text)
		}
	}
	type planFile struct {
		DeviceBytes int64           `json:"device_bytes"`
		HostBytes   int64           `json:"host_bytes"`
		Predicted   plan.Prediction `json:"predicted"`
	}
	p := jsonOf[planFile](t, invoke(t, "plan", w.path("run.yaml"), "--json", "--set", "memory.device=2MiB").must(t).stdout)
	if p.DeviceBytes <= 0 || p.DeviceBytes > 2<<20 || p.HostBytes <= 0 || p.Predicted.StepSeconds <= 0 {
		t.Errorf("plan %+v", p)
	}
	schedule := invoke(t, "plan", w.path("run.yaml"), "--schedule", "--set", "memory.device=2MiB").must(t).stdout
	for _, word := range []string{"fetch part", "backward layer 1", "every other step", "update"} {
		if !strings.Contains(schedule, word) {
			t.Errorf("no %q in\n%s", word, schedule)
		}
	}
	// config.json is enough.
	w.write("shape/config.json", tinyConfig)
	invoke(t, "plan", "--model", w.path("shape"), "--set", "sequence_len=64", "--set", "batch_tokens=128").must(t)
	if left := w.files("out"); left != nil {
		t.Errorf("a plan wrote %v", left)
	}
}

func TestPreview(t *testing.T) {
	w := newWorkshop(t)
	w.write("data/qa.jsonl", `{"question": "2+2?", "answer": "4"}`+"\n"+`{"question": "3+3?", "answer": "six"}`+"\n")
	set := "datasets=[{path: " + w.path("data/qa.jsonl") + ", type: prompt-response, prompt: question, response: answer}]"
	r := invoke(t, "preview", w.path("run.yaml"), "--json", "--limit", "0", "--set", set).must(t)
	lines := bufio.NewScanner(strings.NewReader(r.stdout))
	n, summaries := 0, 0
	for lines.Scan() {
		var e struct {
			InputIDs []int32 `json:"input_ids"`
			Labels   []int32 `json:"labels"`
			Summary  *struct {
				Documents int
				Lengths   struct{ P50, P99 int }
				Repeated  *int
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if s := e.Summary; s != nil {
			if summaries++; n != 2 || s.Documents != 2 || s.Lengths.P99 <= s.Lengths.P50 || s.Repeated == nil || *s.Repeated != 0 {
				t.Errorf("after %d examples: %s", n, lines.Bytes())
			}
			continue
		}
		masked := 0
		for i, l := range e.Labels {
			if l == -100 {
				masked++
			} else if l != e.InputIDs[i] {
				t.Errorf("label %d is %d, the token %d: labels are not shifted", i, l, e.InputIDs[i])
			}
		}
		if len(e.Labels) != len(e.InputIDs) || masked < 4 || masked == len(e.Labels) {
			t.Errorf("example %+v", e)
		}
		n++
	}
	if n != 2 || summaries != 1 {
		t.Errorf("%d examples and %d summaries, want 2 and 1", n, summaries)
	}
	text := invoke(t, "preview", w.path("run.yaml"), "--limit", "1", "--set", set).must(t).stdout
	if !strings.Contains(text, "2+2?") || strings.Contains(text, "3+3?") || !strings.Contains(text, "[[") || !strings.Contains(text, "2 documents") {
		t.Errorf("preview:\n%s", text)
	}
}

func TestEval(t *testing.T) {
	w := newWorkshop(t)
	args := []string{"eval", "--model", w.path("model"), "--data", w.path("data/b.txt"), "--tokenizer", "bytes", "--compute", "f32"}
	l := jsonOf[train.Loss](t, invoke(t, append(args, "--json")...).must(t).stdout)
	if l.Loss < 4 || l.Loss > 8 || l.TargetTokens != l.Tokens-1 || l.TargetTokens < int64(len(tinyText))-1 {
		t.Errorf("loss %+v", l)
	}
	streamed := jsonOf[train.Loss](t, invoke(t, append(args, "--json", "--memory-device", "2MiB")...).must(t).stdout)
	if streamed.Loss != l.Loss {
		t.Errorf("streamed: loss %v, in place: %v", streamed.Loss, l.Loss)
	}
	if text := invoke(t, args...).must(t).stdout; !strings.Contains(text, "perplexity") {
		t.Errorf("eval: %s", text)
	}
	w.write("rows.jsonl", `{"prompt": "a", "response": "b", "system": "c", "weight": 0.5}`+"\n")
	rows := []string{"eval", "--model", w.path("model"), "--data", w.path("rows.jsonl"), "--type", "prompt-response", "--tokenizer", "bytes"}
	if said := invoke(t, rows...); said.status != 2 || !strings.Contains(said.stderr, "ignore") {
		t.Errorf("keys that carry meaning: status %d, %s", said.status, said.stderr)
	}
	invoke(t, append(rows, "--ignore", "system,weight")...).must(t)
}

func TestGrad(t *testing.T) {
	w := newWorkshop(t)
	w.write("tokens.json", `{"input_ids": [[1, 2, 3, 4], [5, 6]], "labels": [[-100, 2, 3, 4], [5, 6]]}`)
	s := jsonOf[verbs.GradSummary](t, invoke(t, "grad", "--model", w.path("model"), "--tokens", w.path("tokens.json"),
		"--out", w.path("grads.safetensors"), "--logits", "--json").must(t).stdout)
	if s.TargetTokens != 4 || s.Sequences != 2 || s.Loss <= 0 || s.GradNorm <= 0 {
		t.Errorf("summary %+v", s)
	}
	if !strings.Contains(w.read("grads.safetensors"), `"logits.1"`) {
		t.Error("no logits in the file")
	}
}

func TestGenerate(t *testing.T) {
	w := newWorkshop(t)
	args := []string{"generate", "--model", w.path("model"), "--tokenizer", "bytes", "--max-tokens", "5"}
	g := jsonOf[generate.Generated](t, invoke(t, append(args, "--prompt", "the wheel", "--json")...).must(t).stdout)
	if len(g.Tokens) == 0 || len(g.Tokens) > 5 || g.PromptTokens != 9 {
		t.Errorf("generated %+v", g)
	}
	piped := jsonOf[generate.Generated](t, invokeWith(t, "the wheel", nil, append(args, "--prompt", "-",
		"--json")...).must(t).stdout)
	if d := cmp.Diff(g.Tokens, piped.Tokens); d != "" {
		t.Errorf("the same prompt and seed give other tokens:\n%s", d)
	}
	// Several prompts are answered in their order, a line each; the first one as if it were alone.
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(file, []byte("{\"prompt\": \"turns\"}\n\n{\"prompt\": \"on\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	several := invoke(t, append(args, "--prompt", "the wheel", "--prompts", file, "--json")...).must(t).stdout
	var lengths []int
	for i, line := range strings.Split(strings.TrimSpace(several), "\n") {
		of := jsonOf[generate.Generated](t, line)
		if lengths = append(lengths, of.PromptTokens); i == 0 && !slices.Equal(of.Tokens, g.Tokens) {
			t.Errorf("with other prompts %v, alone %v", of.Tokens, g.Tokens)
		}
	}
	if !slices.Equal(lengths, []int{9, 5, 2}) {
		t.Errorf("prompts of %v tokens:\n%s", lengths, several)
	}
	if r := invoke(t, append(args, "--prompt", "the wheel")...).must(t); !strings.HasSuffix(r.stdout, "\n") {
		t.Errorf("output %q does not end its line", r.stdout)
	}
}

func TestExport(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "export", w.path("model"), w.path("half"), "--dtype", "bf16").must(t)
	invoke(t, "export", w.path("half"), w.path("full"), "--dtype", "f32").must(t)
	full, err := hf.OpenWeights(w.path("full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	half, err := hf.OpenWeights(w.path("half"))
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	for _, name := range full.Names() {
		f, _ := full.Info(name)
		h, _ := half.Info(name)
		if f.DType != tensor.F32 || h.DType != tensor.BF16 || !f.Shape.Equal(h.Shape) {
			t.Errorf("%s: %v and %v", name, f, h)
		}
		a, b := make([]float32, f.Shape.Elems()), make([]float32, f.Shape.Elems())
		if err := full.ReadF32(name, a, 0); err != nil {
			t.Fatal(err)
		}
		if err := half.ReadF32(name, b, 0); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("%s: other numbers", name)
		}
	}
}

func TestImport(t *testing.T) {
	w := newWorkshop(t)
	const file = "../../gguf/testdata/tiny_llama.gguf"
	invoke(t, "import", file, w.path("imported")).must(t)
	if _, err := hf.ReadConfig(w.path("imported")); err != nil {
		t.Error(err)
	}
	if r := invoke(t, "import", file, w.path("imported")); r.status != exitBadRequest {
		t.Errorf("over a model: status %d, %s", r.status, r.stderr)
	}
	invoke(t, "import", file, w.path("imported"), "--replace").must(t)
}

func TestBench(t *testing.T) {
	w := newWorkshop(t)
	b := jsonOf[bench.Result](t, invoke(t, "bench", "--model", w.path("model"), "--sequence-len", "32", "--batch-tokens", "64",
		"--steps", "2", "--warmup", "1", "--json").must(t).stdout)
	if b.Steps != 2 || b.Tokens != 64 || b.StepSec <= 0 || b.TokensPerSec <= 0 || b.PlannedBy != "guess" || b.GuessReason == "" ||
		math.Abs(b.Loss-b.LossUniform) > 0.5 || b.LossFirst <= 0 {
		t.Errorf("bench %+v", b)
	}
	text := invoke(t, "bench", "--model", w.path("model"), "--sequence-len", "32", "--tokens", "64", "--steps", "1", "--warmup", "1",
		"--memory-device", "4MiB", "--stream", "always", "--alias-layers", "--trace", w.path("bench-trace.json")).must(t).stdout
	for _, want := range []string{"ALIASED LAYERS", "the weights mean nothing", "measured", "simulated", "TFLOP/s",
		"update busy", "kept for backward: ", "streamed: 2 of 2 blocks", "the last step", "\n  compute ",
		"in the last; ln(vocabulary) is ", "planned by", "A GUESS, since this machine was not measured: run `millrace probe`"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if text := benchText(&bench.Result{PlannedBy: "probe"}); !strings.Contains(text, "what `millrace probe` measured") {
		t.Error(text)
	}
	checkTraced(t, w, "bench-trace.json", false)
}

// checkTraced shows and draws a trace that a verb wrote, of a step of the workshop's model.
func checkTraced(t *testing.T, w *workshop, name string, simulated bool) {
	t.Helper()
	picture := func(args ...string) string {
		t.Helper()
		args = append([]string{"trace", w.path(name), "--svg", w.path("step.svg"), "--json"}, args...)
		r := jsonOf[tracedStep](t, invoke(t, args...).must(t).stdout)
		if r.Simulated != simulated || r.Torn || r.Step < 1 || r.StepSec <= 0 || r.Lanes[trace.Compute] <= 0 ||
			r.BusyShares[trace.Compute] > 1 || len(r.Timeline) < 2 || r.SVG != w.path("step.svg") ||
			r.Tokens != 64 || r.Device == "" {
			t.Errorf("%s: %+v", name, r)
		}
		return w.read("step.svg")
	}
	light, dark := picture(), picture("--dark")
	if light == dark || !strings.HasPrefix(light, "<svg") || !strings.Contains(light, ">backward</text>") ||
		strings.Contains(light, "simulated") != simulated {
		t.Errorf("%s: the picture on a light page is\n%s", name, light)
	}
	text := invoke(t, "trace", w.path(name)).must(t).stdout
	for _, want := range []string{"compute busy", "\n  compute ", "B backward with recompute"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s: %q is not in\n%s", name, want, text)
		}
	}
	if strings.Contains(text, "SIMULATED") != simulated {
		t.Errorf("%s: is it a simulation?\n%s", name, text)
	}
}

func TestTraceOfPlans(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "bench", "--model", w.path("model"), "--sequence-len", "32", "--tokens", "64", "--memory-device", "4MiB",
		"--dry-run", "--trace", w.path("dry.json")).must(t)
	checkTraced(t, w, "dry.json", true)
	invoke(t, "plan", "--model", w.path("model"), "--set", "sequence_len=32", "--set", "batch_tokens=64",
		"--trace", w.path("plan.json")).must(t)
	checkTraced(t, w, "plan.json", true)
}

func TestVersion(t *testing.T) {
	useCache(t)
	if v := jsonOf[build](t, invoke(t, "version", "--json").must(t).stdout); v.Version == "" || v.Go == "" {
		t.Errorf("version %+v", v)
	}
	if text := invoke(t, "version").must(t).stdout; !strings.HasPrefix(text, "millrace ") {
		t.Errorf("version: %q", text)
	}
}

func TestProbe(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for seconds")
	}
	useCache(t)
	m := jsonOf[plan.Machine](t, invoke(t, "probe", "--path", "none", "--json").must(t).stdout)
	if err := m.Check(); err != nil || m.DiskPath != "" || m.DiskReadBytesPerSec != 0 {
		t.Errorf("%+v: %v", m, err)
	}
	kept, err := os.ReadDir(os.Getenv("MILLRACE_CACHE"))
	if err != nil || len(kept) != 1 {
		t.Errorf("in the cache: %v, %v", kept, err)
	}
}

// Each figure has its unit, and the drive its directory.
func TestMachineText(t *testing.T) {
	m := plan.Machine{Name: "a device", F32FLOPsPerSec: 1e9, BF16FLOPsPerSec: 2e9, AttentionFLOPsPerSec: 3e9, DeviceBytesPerSec: 4e9,
		UploadBytesPerSec: 5e9, DownloadBytesPerSec: 6e9, HostBytesPerSec: 7e9, AdamWBytesPerSec: 8e9}
	if text := machineText(&m); strings.Count(text, "GFLOP/s") != 3 || strings.Count(text, "GB/s") != 5 || strings.Contains(text, "disk") {
		t.Error(text)
	}
	m.AttentionByLength = []plan.AttentionRate{{SequenceLen: 2048, FLOPsPerSec: 3e9}, {SequenceLen: 8192, FLOPsPerSec: 4e9}}
	longer := "attention, sequences of 8192  4.00 GFLOP/s"
	if text := machineText(&m); strings.Count(text, "GFLOP/s") != 4 || !strings.Contains(text, longer) {
		t.Error(text)
	}
	if text := machineText(&m); strings.Contains(text, "precision.compute") || fasterType(&m) != "" {
		t.Error(text)
	}
	both := m
	both.F32AttentionFLOPsPerSec, both.F32DeviceBytesPerSec = 2e9, 9e9
	both.F32AttentionByLength = []plan.AttentionRate{{SequenceLen: 2048, FLOPsPerSec: 2e9}}
	text := machineText(&both)
	for _, want := range []string{"attention, f32, sequences of 2048  2.00", "attention, bf16, sequences of 2048  3.00",
		"precision.compute: bf16 is the faster type here, 2.00 times as fast as the other in products and 1.50 times " +
			"in attention\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if fasterType(&both) != "bf16" || strings.Count(text, "GFLOP/s") != 5 || strings.Count(text, "GB/s") != 6 {
		t.Error(text)
	}
	m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, m.DiskPath = 1.25e9, 0.75e9, "/mnt/drive"
	if text := machineText(&m); strings.Count(text, "GB/s") != 7 || !strings.Contains(text, "1.25") || !strings.Contains(text, "/mnt/drive") {
		t.Error(text)
	}
}
