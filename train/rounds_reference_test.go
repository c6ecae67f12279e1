package train

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/traintest"
)

// heldLoop is a loop that is held to the model it began as.
func heldLoop(t *testing.T, kl float64) *runfile.Config {
	c := loopConfig(t)
	c.Objective.KL = optim.Given(kl)
	c.RL.ReferenceMemory = runfile.ModelMemory{Host: runfile.Bytes{N: 1 << 30}}
	return c
}

// otherQwen is the model of the toy with other weights.
func otherQwen(t *testing.T) string {
	dir := traintest.WriteConfig(t, qwenConfig)
	traintest.WriteWeights(t, dir, 5)
	return dir
}

// A loop has the weights of a run of type rollouts that takes the files of its rounds one after the other, by the bits.
func TestLoopIsRunsOverItsFiles(t *testing.T) {
	held := func(of runfile.Objective) *runfile.Config {
		c := heldLoop(t, 0.05)
		of.Type, of.KL = "policy", c.Objective.KL
		c.Objective = of
		return c
	}
	twice := held(runfile.Objective{Old: "sampler"})
	twice.RL.Iterations = 2
	taught := heldLoop(t, 0)
	taught.Objective = runfile.Objective{Type: "policy", Loss: runfile.Losses{"ref_kl"}, Reference: otherQwen(t)}
	taught.RL.Reward = nil
	for name, c := range map[string]*runfile.Config{
		"alone":   loopConfig(t),
		"start":   held(runfile.Objective{}),
		"another": held(runfile.Objective{Reference: otherQwen(t), KLPlain: true}),
		"rloo":    held(runfile.Objective{Loss: runfile.Losses{"rloo"}}),
		"ppo":     held(runfile.Objective{Loss: runfile.Losses{"ppo"}}),
		"twice":   twice,
		"taught":  taught,
		"gspo":    held(runfile.Objective{Loss: runfile.Losses{"gspo"}}),
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "alone" && name != "start" && name != "taught" {
				t.Skip("one of each kind of loss runs here; all eight take 8 seconds of two cores: make long runs them")
			}
			c.MaxSteps = 4
			all := loopRecords(t, c)
			if _, has := all[0].Objective["kl"]; has != (name != "alone") {
				t.Errorf("the record of the first step has a divergence: %v", has)
			}
			if name == "taught" && all[0].Objective["kl"] == 0 {
				t.Error("the divergence from a teacher is 0")
			}
			files := *c
			files.OutputDir, files.RL = filepath.Join(t.TempDir(), "run"), runfile.RL{}
			files.ResumeWith = []string{"datasets", "max_steps"}
			for files.MaxSteps = 1; files.MaxSteps <= c.MaxSteps; files.MaxSteps++ {
				round := (files.MaxSteps - 1) / c.RL.Iterations
				files.Datasets = []data.Source{{Type: data.Rollouts,
					Path: filepath.Join(c.OutputDir, rl.Dir, rl.RowsName(round))}}
				if _, err := Train(t.Context(), &files, Options{Env: newEnv(t)}); err != nil {
					t.Fatal(err)
				}
			}
			sameModel(t, filepath.Join(files.OutputDir, rundir.LastModel), filepath.Join(c.OutputDir, rundir.LastModel))
		})
	}
}

// A loop that ends at any moment, also while the reference reads, continues to the bits of one that does not.
func TestHeldLoopsContinue(t *testing.T) {
	c := heldLoop(t, 0.05)
	c.Save.Every, c.MaxSteps = 2, 4
	loopRecords(t, c)
	want := loopWeights(t, c)
	for _, where := range []string{"sampling", "scoring", "file", "manifest", "reference"} {
		own := *c
		own.OutputDir = filepath.Join(t.TempDir(), "run")
		ctx, cancel := context.WithCancel(t.Context())
		env, rounds := newEnv(t), 0
		env.Tests.Reached = func(is string) error {
			if is == "scoring" {
				rounds++
			}
			if is != where || rounds != 1 && (is == "sampling") || rounds != 2 && is != "sampling" {
				return nil
			}
			cancel()
			return errKilled
		}
		if _, err := Train(ctx, &own, Options{Env: env}); err == nil {
			t.Fatalf("%s: the run was not ended", where)
		}
		loopRecords(t, &own)
		if !bytes.Equal(loopWeights(t, &own), want) {
			t.Errorf("ended at %s: other weights", where)
		}
		for round := range c.MaxSteps {
			for _, name := range []string{rl.RowsName(round), rl.ReferenceName(round)} {
				a, errA := os.ReadFile(filepath.Join(c.OutputDir, rl.Dir, name))
				b, errB := os.ReadFile(filepath.Join(own.OutputDir, rl.Dir, name))
				if errA != nil || errB != nil || !bytes.Equal(a, b) {
					t.Errorf("ended at %s: another %s (%v, %v)", where, name, errA, errB)
				}
			}
		}
	}
}

// The reference's file of a round is made again where it is gone, is damaged or is of another round, also between two
// steps with the same answers.
func TestReferenceOfARoundIsMadeAgain(t *testing.T) {
	c := heldLoop(t, 0.05)
	c.RL.Iterations, c.Objective.Old, c.MaxSteps = 2, "sampler", 4
	loopRecords(t, c)
	want := loopWeights(t, c)
	for name, harm := range map[string]func(path string) error{
		"gone":    os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("mrlogpr1"), 0o600) },
		"other": func(path string) error {
			other := filepath.Join(filepath.Dir(path), rl.ReferenceName(0))
			b, err := os.ReadFile(other)
			return errors.Join(err, os.WriteFile(path, b, 0o600))
		},
		"without the manifest's figures": func(path string) error {
			manifest := filepath.Join(filepath.Dir(path), "000001.json")
			b, err := os.ReadFile(manifest)
			b = regexp.MustCompile(`"figures": *\{[^}]*\}`).ReplaceAll(b, []byte(`"figures": null`))
			return errors.Join(err, os.WriteFile(manifest, b, 0o600))
		},
	} {
		own := *c
		own.OutputDir, own.MaxSteps = filepath.Join(t.TempDir(), "run"), 3
		loopRecords(t, &own)
		path := filepath.Join(own.OutputDir, rl.Dir, rl.ReferenceName(1))
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := harm(path); err != nil {
			t.Fatal(err)
		}
		own.MaxSteps, own.ResumeWith = 4, []string{"max_steps"}
		loopRecords(t, &own)
		if !bytes.Equal(loopWeights(t, &own), want) {
			t.Errorf("%s: other weights", name)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, whole) {
			t.Errorf("%s: the file is another one (%v)", name, err)
		}
	}
}

// The first round of a loop is at no distance from the model that it began as, to the bit, and with a great coefficient
// it stays near.
func TestLoopStaysNearItsReference(t *testing.T) {
	last := func(kl float64) float64 {
		c := heldLoop(t, kl)
		c.MaxSteps, c.Save.Every = 12, 0
		all := loopRecords(t, c)
		if first, ok := all[0].Objective["kl"]; !ok || first != 0 {
			t.Errorf("kl %g: the divergence of the first step is %v (%v)", kl, first, ok)
		}
		for i, m := range all {
			if !(m.Objective["reference_sec"] > 0) {
				t.Errorf("step %d: reference_sec is %v", i+1, m.Objective["reference_sec"])
			}
		}
		return all[len(all)-1].Objective["kl"]
	}
	free, held := last(1e-9), last(3)
	t.Logf("the divergence after 11 steps: %g, and held %g", free, held)
	if !(free > 0 && held < free/4) {
		t.Errorf("the divergence is %g, and held %g", free, held)
	}
}

// A loop is refused before it samples where its reference has no room, or is of other tokens.
func TestLoopRefusesItsReference(t *testing.T) {
	for text, change := range map[string]func(c *runfile.Config){
		"reference: rl.reference_memory.host: the model needs ": func(c *runfile.Config) {
			c.RL.ReferenceMemory.Host.N = 1 << 20
		},
		"objective.reference: ": func(c *runfile.Config) { c.Objective.Reference = t.TempDir() },
		"has 98 tokens": func(c *runfile.Config) {
			smaller := map[string]any{}
			for k, v := range qwenConfig {
				smaller[k] = v
			}
			smaller["vocab_size"] = 98
			c.Objective.Reference = traintest.WriteModel(t, smaller)
		},
	} {
		c := heldLoop(t, 0.05)
		change(c)
		_, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err == nil || !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error is %v", text, err)
		} else {
			t.Log(err)
		}
		if _, err := os.Stat(filepath.Join(c.OutputDir, rl.Dir)); err == nil {
			t.Errorf("%s: a round was sampled", text)
		}
	}
}
