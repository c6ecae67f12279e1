package millrace_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/train"
)

// tiny is the model of examples/library with settings, and without data sets.
func tiny(t *testing.T, settings ...string) []string {
	t.Helper()
	return append([]string{"model=examples/library/tiny", "init=random", "tokenizer=bytes", "sequence_len=64",
		"batch_tokens=256", "device=cpu", "output_dir=" + t.TempDir()}, settings...)
}

// A refusal of the facade is one line, and matches train.ErrRequest.
func TestRefusals(t *testing.T) {
	config := func(settings ...string) error {
		_, err := millrace.Config("", settings...)
		return err
	}
	shape := func(shape, machine string, settings ...string) error {
		_, err := millrace.PlanShape(t.Context(), shape, machine, settings...)
		return err
	}
	noModel := func() error {
		c, err := millrace.Config("")
		if err != nil {
			t.Fatal(err)
		}
		_, err = millrace.Plan(t.Context(), c, millrace.PlanOptions{})
		return err
	}
	noData := func() error {
		c, err := millrace.Config("", tiny(t)...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = millrace.Train(t.Context(), c, millrace.TrainOptions{})
		return err
	}
	for want, err := range map[string]error{
		"model is missing":         noModel(),
		"unknown key":              config("modle=x"),
		"sequence_len is 1":        config(tiny(t, "sequence_len=1")...),
		"qwen2.5-14b":              shape("qwen", "rtx3090-pc-24gb-64gb"),
		"rtx3090-pc-24gb-64gb":     shape("qwen2.5-14b", "a toaster"),
		"learning_rate":            shape("qwen2.5-14b", "rtx3090-pc-24gb-64gb", "learning_rate=-1"),
		"datasets is missing":      noData(),
		"memory.host":              shape("qwen2.5-14b", "rtx3090-pc-24gb-64gb", "memory.host=1GiB"),
		"is not the number of a G": open(t, "device=cuda:x"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want a line with %q", err, want)
		}
		if !errors.Is(err, train.ErrRequest) {
			t.Errorf("%v does not match train.ErrRequest", err)
		}
	}
}

// Weights that are links elsewhere are read if they lead into the user's cache of the hub, or if the user says so.
func TestLinksOfTheEnvironment(t *testing.T) {
	t.Cleanup(func() { below.Allow(below.Links{}) })
	home, elsewhere := t.TempDir(), t.TempDir()
	blobs := filepath.Join(home, "hub", "models--a--b", "blobs")
	for path, at := range map[string]string{"in the cache": filepath.Join(blobs, strings.Repeat("beef", 16)),
		"elsewhere": filepath.Join(elsewhere, "config.json")} {
		dir := t.TempDir()
		err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.CopyFS(dir, os.DirFS("examples/library/tiny")),
			os.Rename(filepath.Join(dir, "config.json"), at))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(at, filepath.Join(dir, "config.json")); err != nil {
			t.Skip("this system makes no symbolic links for this user: ", err)
		}
		for _, c := range []struct {
			home, follow string
			good         bool
		}{{home, "", path == "in the cache"}, {elsewhere, "", false}, {elsewhere, "1", true}, {elsewhere, "0", false}} {
			t.Setenv("HF_HOME", c.home)
			t.Setenv("HF_HUB_CACHE", "")
			t.Setenv("MILLRACE_FOLLOW_LINKS", c.follow)
			err := open(t, "model="+dir)
			if (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "MILLRACE_FOLLOW_LINKS=1") {
				t.Errorf("a link %s, HF_HOME=%s, MILLRACE_FOLLOW_LINKS=%s: %v", path, c.home, c.follow, err)
			}
		}
	}
}

// All that the program in a container keeps is in the directory that is mounted for it: its user has no home.
func TestContainerKeepsInOneDirectory(t *testing.T) {
	file, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"MILLRACE_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/")
	t.Cleanup(func() { below.Allow(below.Links{}) })
	for _, set := range regexp.MustCompile(`(?m)^(?:ENV)? +([A-Z_]+)=(\S+)`).FindAllStringSubmatch(string(file), -1) {
		if set[1] != "PATH" {
			t.Setenv(set[1], set[2])
		}
	}
	for _, dir := range []string{millrace.NewEnv(nil).CacheDir, hub.CacheFromEnv()} {
		if in, err := filepath.Rel("/cache", dir); err != nil || !filepath.IsLocal(in) {
			t.Errorf("%s is not below /cache", dir)
		}
	}
}

func open(t *testing.T, settings ...string) error {
	t.Helper()
	c, err := millrace.Config("", tiny(t, settings...)...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = millrace.Open(t.Context(), c, millrace.OpenOptions{})
	return err
}

// A plan needs no data sets, and is for the memory of this machine.
func TestPlan(t *testing.T) {
	c, err := millrace.Config("", tiny(t)...)
	if err != nil {
		t.Fatal(err)
	}
	planned, err := millrace.Plan(t.Context(), c, millrace.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := planned.String(); planned.Plan.HostBytes == 0 || !strings.Contains(text, "host memory") {
		t.Errorf("the plan is\n%s", text)
	}
}

// A log receives the messages of a run.
func TestEnvLog(t *testing.T) {
	var log strings.Builder
	c, err := millrace.Config("", tiny(t, "datasets=[{path: examples/library/tiny/text.txt, type: text}]",
		"max_steps=1")...)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := millrace.Train(t.Context(), c, millrace.TrainOptions{Env: millrace.NewEnv(&log)})
	if err != nil || sum.Steps != 1 {
		t.Fatalf("%+v, error %v", sum, err)
	}
	if !strings.Contains(log.String(), "step 1/1") {
		t.Errorf("the log is %q", log.String())
	}
}
