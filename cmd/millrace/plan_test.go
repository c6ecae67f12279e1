package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/rehearse"
)

// A published shape on a machine that is not there needs no file, and is rehearsed.
func TestWhatIf(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out plans of large models; make test runs them")
	}
	useCache(t)
	t.Chdir(t.TempDir())
	args := []string{"plan", "--shape", "qwen2.5-1.5b", "--machine", "rtx2060-laptop-6gb", "--rehearse",
		"--set", "sequence_len=1024", "--set", "batch_tokens=4096", "--set", "max_steps=100"}
	text := invoke(t, args...).must(t).stdout
	for _, word := range []string{"1.5B parameters", "RTX 2060", "what limits it", "100 steps take",
		"in each of 100 steps",
		"of the 1200 TB that the drive is rated for", "data sheet", "as planned",
		"figures that are taken to arrive: bf16 products 0.65", "all assumed", "assumed for every machine"} {
		if !strings.Contains(text, word) {
			t.Errorf("no %q in\n%s", word, text)
		}
	}
	type result struct {
		plan.Plan
		Machine   plan.Machine       `json:"machine"`
		Sources   []string           `json:"sources"`
		Forecast  plan.Forecast      `json:"forecast"`
		Rehearsed rehearse.Rehearsal `json:"rehearsed"`
	}
	r := jsonOf[result](t, invoke(t, append(args, "--json", "--tbw", "600TB")...).must(t).stdout)
	if r.Forecast.TokensPerSec <= 0 || r.Forecast.Steps != 100 || len(r.Forecast.Timeline) == 0 ||
		r.Wear.Bytes != 600e12 || r.Wear.IsAssumed || r.Wear.Steps != 100 ||
		r.Rehearsed.DeviceBytes != r.DeviceBytes || len(r.Sources) < 5 || r.Machine.Check() != nil {
		t.Errorf("%+v", r)
	}
	if r.DiskBytes == 0 || r.Rehearsed.DiskWrittenBytes != r.Predicted.DiskWrittenBytes || r.Wear.Share <= 0 {
		t.Errorf("21 GB of state in 14 GiB: %d bytes on disk, %d written a step, %d rehearsed", r.DiskBytes,
			r.Predicted.DiskWrittenBytes, r.Rehearsed.DiskWrittenBytes)
	}

	for want, args := range map[string][]string{
		"deepseek-v3, dense-123b":    {"--shape", "list"},
		"known are rtx2060":          {"--shape", "qwen3-8b", "--machine", "list"},
		"--tbw":                      {"--shape", "qwen3-8b", "--tbw", "much"},
		"give one of them":           {"--shape", "qwen3-8b", "--model", "x"},
		"each of which makes it fit": {"--shape", "llama-3-70b", "--machine", "rtx3090-pc-24gb-64gb", "--set", "memory.disk=none"},
	} {
		r := invoke(t, append([]string{"plan"}, args...)...)
		if r.status != exitBadRequest || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("plan %v: status %d, %s", args, r.status, r.stderr)
		}
	}
}

// With --stream always no weights stay on the device; a CPU without a budget of its own streams nothing.
func TestPlanStreamsAll(t *testing.T) {
	useCache(t)
	args := []string{"plan", "--shape", "smollm2-135m", "sequence_len=64", "batch_tokens=256"}
	streamed := func(of string) string {
		return invoke(t, append(args, "--machine", "h100-sxm", "--stream", of)...).must(t).stdout
	}
	if text := streamed("always"); !strings.Contains(text, "streamed: 30 of 30 blocks") {
		t.Errorf("not all blocks are streamed:\n%s", text)
	}
	if text := streamed("auto"); strings.Contains(text, "streamed: 30 of 30 blocks") {
		t.Errorf("all blocks are streamed:\n%s", text)
	}
	r := invoke(t, append(args, "device=cpu", "--stream", "always")...)
	if r.status != exitBadRequest || !strings.Contains(r.stderr, "set memory.device to a size") {
		t.Errorf("status %d, %s", r.status, r.stderr)
	}
	budget := append(args, "device=cpu", "memory.device=64MiB", "--stream", "always")
	if text := invoke(t, budget...).must(t).stdout; !strings.Contains(text, "streamed: 30 of 30 blocks") {
		t.Errorf("not all blocks are streamed:\n%s", text)
	}
}

// A plan for several hosts says what they exchange and gain, and is rehearsed for each of them. It needs a network.
func TestPlanHosts(t *testing.T) {
	useCache(t)
	args := []string{"plan", "--shape", "smollm2-135m", "--machine", "rtx4090-pc-128gb", "sequence_len=64",
		"batch_tokens=256", "--hosts"}
	text := invoke(t, append(args, "2", "--network", "10Gb", "--rehearse")...).must(t).stdout
	for _, want := range []string{"in 2 groups", "sent to other hosts", "what limits it", "hosts       ",
		"one host    takes", "the other hosts (1) are as planned"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	asJSON := append(args[:len(args):len(args)], "2", "--network", "10Gb", "--rehearse", "--json")
	r := jsonOf[planResult](t, invoke(t, asJSON...).must(t).stdout)
	if h := r.Hosts; h == nil || h.Hosts != 2 || len(h.ByHost) != 2 || h.SpeedUp <= 0 || len(r.RehearsedOthers) != 1 ||
		r.Machine.NetworkBytesPerSec != 1.1e9 || r.Rehearsed.SentBytes != r.Predicted.SentBytes {
		t.Errorf("%+v", r)
	}
	for want, args := range map[string][]string{
		"the network between hosts is not known": append(args, "2"),
		"known are 1Gb, 10Gb":                    append(args, "2", "--network", "slow"),
		"3 hosts do not divide the 4 sequences":  append(args, "3", "--network", "10Gb"),
		"--hosts -1: write the number":           append(args[:len(args)-1:len(args)-1], "--hosts=-1"),
		"--hosts 0: write the number":            append(args, "0", "--network", "10Gb"),
	} {
		r := invoke(t, args...)
		if r.status != exitBadRequest || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: status %d, %s", args, r.status, r.stderr)
		}
	}
}

// A named machine is written as a file, edited, and planned for.
func TestPlanForAMachineFile(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out plans of large models; make test runs them")
	}
	useCache(t)
	file := filepath.Join(t.TempDir(), "mine.yaml")
	r := invoke(t, "plan", "--machine", "rtx4090-pc-128gb", "--machine-out", file).must(t)
	if !strings.Contains(r.stdout, file+": edit it") {
		t.Error(r.stdout)
	}
	ask := []string{"plan", "--shape", "qwen2.5-1.5b", "batch_tokens=4096", "--json", "--machine"}
	named := jsonOf[planResult](t, invoke(t, append(ask, "rtx4090-pc-128gb")...).must(t).stdout)
	same := jsonOf[planResult](t, invoke(t, append(ask, file)...).must(t).stdout)
	if math.Abs(named.Predicted.StepSeconds/same.Predicted.StepSeconds-1) > 1e-4 ||
		math.Abs(float64(named.HostBudget-same.HostBudget)) > 1 ||
		!strings.Contains(same.Sources[0], file) {
		t.Errorf("%v s and %v s, %v", named.Predicted.StepSeconds, same.Predicted.StepSeconds, same.Sources)
	}
	if err := os.WriteFile(file, []byte("base: rtx4090-pc-128gb\nbf16_flops_per_sec: 40e12\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	slower := jsonOf[planResult](t, invoke(t, append(ask, file)...).must(t).stdout)
	if slower.Predicted.StepSeconds < 1.5*named.Predicted.StepSeconds {
		t.Errorf("%v s at a quarter of the rate, %v s before", slower.Predicted.StepSeconds, named.Predicted.StepSeconds)
	}
}
