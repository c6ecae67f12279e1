package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tests runs tests of a test binary, some of them in a rehearsal. Patterns are those of -test.run, but each part is a
// whole name.
func tests(binary, pattern, tiny string) func(c *check) (string, error) {
	return func(c *check) (string, error) {
		chosen := pattern
		if c.tiny {
			chosen = tiny
		}
		said, err := c.command([]string{"MILLRACE_GPU=1"}, binary, testArgs(c, chosen)...)
		return testNote(said), err
	}
}

// tabled runs a test that prints a table for people, between lines that begin with "#" and with a word in capitals, and
// the same as JSON after that word. All of the table is shown: it says what to improve.
func tabled(name, test string) func(c *check) (string, error) {
	table := tableOfTest(name)
	return func(c *check) (string, error) {
		said, err := c.command([]string{"MILLRACE_GPU=1"}, "cuda.test", testArgs(c, test)...)
		if m := table.FindStringSubmatch(said); m != nil {
			c.say(" %s", m[1])
			c.report.Output[name] = json.RawMessage(m[2])
		} else if err == nil && strings.Contains(said, "--- SKIP: "+test) {
			err = leftOut("cuBLASLt was not found")
		} else if err == nil {
			err = fmt.Errorf("%s printed no table", test)
		}
		return testNote(said), err
	}
}

// tableOfTest matches a table and its JSON.
func tableOfTest(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?ms)^#(.*?)^` + strings.ToUpper(name) + ` (\{.*?\})$`)
}

// testArgs makes the arguments with which a test binary runs the tests of a pattern: that of -test.run, but each part
// is a whole name.
func testArgs(c *check, pattern string) []string {
	parts := strings.Split(pattern, "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	deadline, _ := c.ctx.Deadline()
	limit := time.Until(deadline) - time.Second // so that it can tell what all goroutines do
	// A few processes at once: each has a context on the GPU, of some hundred MiB.
	return []string{"-test.v", "-test.count=1", "-test.parallel=4", "-test.run=" + strings.Join(parts, "/"),
		fmt.Sprintf("-test.timeout=%.0fs", max(limit.Seconds(), 1))}
}

var (
	testBegan  = regexp.MustCompile(`(?m)^=== RUN +(\S+)`)
	testsEnded = regexp.MustCompile(`(?m)^(PASS|FAIL)$`)
	testResult = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+)`)
	worstError = regexp.MustCompile(`the worst error is (\S+) of what is allowed`)
	summary    = regexp.MustCompile(`(?m)^SUMMARY (.*)$`)
)

// testNote sums up what a test binary printed.
func testNote(said string) string {
	if all := summary.FindAllStringSubmatch(said, -1); all != nil {
		return all[len(all)-1][1]
	}
	counts, notes := map[string]int{}, []string{}
	for _, m := range testResult.FindAllStringSubmatch(said, -1) {
		counts[m[1]]++
		if m[1] == "FAIL" && len(notes) < 4 {
			notes = append(notes, m[2])
		}
		if m[1] == "SKIP" && strings.HasSuffix(m[2], "/cuBLASLt") {
			notes = append(notes, "without cuBLASLt")
		}
	}
	worst := 0.0
	for _, m := range worstError.FindAllStringSubmatch(said, -1) {
		var x float64
		if _, err := fmt.Sscan(m[1], &x); err == nil {
			worst = max(worst, x)
		}
	}
	var first []string
	began := testBegan.FindAllStringSubmatch(said, -1)
	cut := len(began) > 0 && !testsEnded.MatchString(said)
	if cut {
		first = append(first, fmt.Sprintf("cut off after %d tests had begun, the last one %s", len(began),
			began[len(began)-1][1]))
	}
	if !cut || len(counts) > 0 { // a test that is cut off does not tell of its parts
		first = append(first, fmt.Sprintf("%d tests passed, %d failed", counts["PASS"], counts["FAIL"]))
	}
	if worst > 0 {
		first = append(first, fmt.Sprintf("the worst error is %.2g of what is allowed", worst))
	}
	return strings.Join(append(first, notes...), "; ")
}

// keep takes a program's JSON to results.json, and into v.
func (c *check) keep(name, said string, v any) error {
	at := strings.Index(said, "{")
	if at < 0 || !json.Valid([]byte(said[at:])) {
		return fmt.Errorf("%s printed no JSON", name)
	}
	c.report.Output[name] = json.RawMessage(said[at:])
	return json.Unmarshal([]byte(said[at:]), v)
}

// probe measures the machine; the benchmarks that follow plan by it.
func probe(c *check) (string, error) {
	device := c.gpu
	if c.tiny { // the stand-in would take hours; train's tests have it measure small operands
		device = "cpu"
	}
	said, err := c.command(nil, "millrace", "probe", "--device", device, "--path", "none", "--json")
	if err != nil {
		return "", err
	}
	var m struct {
		BF16      float64 `json:"bf16_flops_per_sec"`
		Attention float64 `json:"attention_flops_per_sec"`
		Device    float64 `json:"device_bytes_per_sec"`
		Up        float64 `json:"upload_bytes_per_sec"`
		Down      float64 `json:"download_bytes_per_sec"`
		AdamW     float64 `json:"adamw_bytes_per_sec"`
		Under     float64 `json:"adamw_under_copies_bytes_per_sec"`
		Host      float64 `json:"host_bytes_per_sec"`
	}
	if err := c.keep("probe", said, &m); err != nil {
		return "", err
	}
	return fmt.Sprintf("products %.0f, attention %.0f TFLOP/s; device memory %.0f, up %.1f, down %.1f, AdamW %.0f (%.0f under copies), host copies %.0f GB/s",
		m.BF16/1e12, m.Attention/1e12, m.Device/1e9, m.Up/1e9, m.Down/1e9, m.AdamW/1e9, m.Under/1e9, m.Host/1e9), nil
}

// benchResult has the fields of `millrace bench --json` (bench.Result) that a note tells. To link package bench for
// them would double this program.
type benchResult struct {
	StepSec        float64            `json:"step_sec"`
	StepSecs       []float64          `json:"step_secs"`
	PredictedSec   float64            `json:"predicted_step_sec"`
	ModelTFLOPS    float64            `json:"model_tflops"`
	ExecutedTFLOPS float64            `json:"executed_tflops"`
	PlannedBy      string             `json:"planned_by"`
	Loss           float64            `json:"loss"`
	LossUniform    float64            `json:"loss_uniform"`
	BusyShares     map[string]float64 `json:"busy_shares"`
	Alias          *json.RawMessage   `json:"alias"`

	DeviceFreeMinBytes int64 `json:"device_free_min_bytes"`
}

// benchmark is a run of `millrace bench`.
type benchmark struct {
	name        string // of its JSON and its trace
	devices     string // empty: --gpu
	shape       string // empty: --shape
	tiny        string // the directory of a rehearsal's model, in the folder; empty: the small model
	sequenceLen int    // 0: 2048
	steps       int
	env         []string // further variables, KEY=VALUE
	flags       []string
	whole       bool // nothing is shared: where the host has no room the row is left out
}

// run measures steps, on state that layers share where the host has no room for all of it.
func (b benchmark) run(c *check) (string, error) {
	note, err := c.bench(b)
	switch {
	case !isStatus(err, exitRequest) || c.ctx.Err() != nil:
		return note, err
	case b.whole && strings.Contains(err.Error(), "memory.host: "):
		return "", leftOut(oneLine(err.Error()))
	case b.whole:
		return note, err
	}
	c.logf("again with --alias-layers\n")
	b.flags = append(slices.Clone(b.flags), "--alias-layers")
	return c.bench(b)
}

// bench runs a benchmark.
func (c *check) bench(b benchmark) (string, error) {
	sequenceLen := cmp.Or(b.sequenceLen, 2048)
	devices := cmp.Or(b.devices, c.gpu)
	args := append([]string{"bench", "--device", devices, "--json", "--shape", cmp.Or(b.shape, c.shape), "--sequence-len",
		strconv.Itoa(sequenceLen), "--tokens", "32768", "--steps", strconv.Itoa(b.steps), "--warmup", "1"}, b.flags...)
	if c.hostBytes > 64<<30 && !c.tiny { // all that is there: the system reports less until memory has been touched
		args = append(args, "--memory-host", fmt.Sprintf("%dGiB", int64(0.93*float64(c.hostBytes))>>30))
	}
	if c.tiny { // the planner is asked for the real one, on a card and a host like those that it is for
		if _, err := c.command(b.env, "millrace", append(args, "--dry-run", "--memory-host", "116GiB")...); err != nil {
			return "", err
		}
		model := filepath.Join(c.work, "model")
		if b.tiny != "" {
			model = filepath.Join(c.dir, b.tiny)
		}
		args = append([]string{"bench", "--device", devices, "--json", "--model", model,
			"--sequence-len", "32", "--tokens", "64", "--steps", "1", "--warmup", "1", "--memory-device", "160MiB"},
			b.flags...)
	}
	said, err := c.command(b.env, "millrace", append(args, "--trace", filepath.Join(c.work, b.name+".trace.json"))...)
	if err != nil {
		return "", err
	}
	var r benchResult
	if err := c.keep(b.name, said, &r); err != nil {
		return "", err
	}
	note := fmt.Sprintf("%.3f s a step, %.0f of model and %.0f of executed TFLOP/s; simulated from a %s %.3f s (%+.0f%%); busy: compute %.0f%%, update %.0f%%, fetch %.0f%%; loss %.3f",
		r.StepSec, r.ModelTFLOPS, r.ExecutedTFLOPS, r.PlannedBy, r.PredictedSec, 100*(r.PredictedSec/r.StepSec-1), 100*r.BusyShares["compute"],
		100*r.BusyShares["update"], 100*r.BusyShares["fetch"], r.Loss)
	if n := len(r.StepSecs); n > 1 {
		note += fmt.Sprintf("; steps took %.3f s at first and %.3f s at last", r.StepSecs[0], r.StepSecs[n-1])
	}
	if r.DeviceFreeMinBytes > 0 {
		note += fmt.Sprintf("; %d MiB of the GPU were free at least", r.DeviceFreeMinBytes>>20)
	}
	if r.Alias != nil {
		note += "; layers share memory"
	}
	// Weights are drawn small, so the first losses are near those of guessing. Where layers share memory they are not
	// theirs for long.
	if far := math.Abs(r.Loss - r.LossUniform); r.Alias == nil && !(far < 2) || r.Loss != r.Loss {
		return note, fmt.Errorf("the loss is %.3f, and guessing has %.3f", r.Loss, r.LossUniform)
	}
	return note, nil
}

// script runs a Python program of the folder. Where Python has no PyTorch the row is left out.
func (c *check) script(name string, args ...string) (string, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return "", leftOut("there is no python3")
	}
	if _, err := c.command(nil, python, "-c", "import torch"); err != nil {
		return "", leftOut("python3 has no PyTorch")
	}
	deadline, _ := c.ctx.Deadline()
	budget := fmt.Sprintf("%.0f", max((time.Until(deadline)-5*time.Second).Seconds(), 1))
	said, err := c.command(nil, python, append([]string{filepath.Join(c.dir, name), "--budget", budget}, args...)...)
	if isStatus(err, 3) {
		return "", leftOut(oneLine(err.Error()))
	}
	return said, err
}

// device names the GPU's kind as the Python programs do.
func (c *check) device() string {
	if c.tiny {
		return "cpu"
	}
	return "cuda"
}

// pytorch compares the gradients of two layers of a 7B model with PyTorch's.
func pytorch(c *check) (string, error) {
	args := []string{"--millrace", filepath.Join(c.dir, "millrace"), "--work", filepath.Join(c.work, "pytorch"), "--device", c.gpu}
	if c.tiny {
		args = append(args, "--tiny", "--reference", "cpu")
	}
	said, err := c.script("pytorch.py", args...)
	return oneLine(said), err
}

// rates measures what bounds a step, with PyTorch: the link, the host's memory, products and attention.
func rates(c *check) (string, error) {
	out := filepath.Join(c.out, "rates.json")
	args := []string{"--out", out, "--only", "link", "dram", "matmul", "attention"}
	if c.tiny {
		args = append(args, "--cpu", "--tiny")
	}
	said, err := c.script("benchmarks/gpu-rates/rates.py", args...)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(out)
	if err == nil && !json.Valid(text) {
		err = errors.New("rates.json is not JSON")
	}
	return "PyTorch's rates are in rates.json; " + oneLine(said), err
}
