package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// someSamples are three short texts, every n steps.
func someSamples(n int) runfile.Samples {
	s := runfile.Defaults().Samples
	s.Prompts, s.Every, s.MaxTokens = []data.Prompt{{Text: "the wheel"}, {Text: "turns"}, {Text: "th"}}, n, 4
	return s
}

// samplesOf are the lines of a run's samples.jsonl.
func samplesOf(t *testing.T, dir string) (all []Sample) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(dir, rundir.SamplesName))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(doc) {
		var s Sample
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, s)
	}
	return all
}

// checkSamples makes sure that a run has written all its texts after these steps, each once and in order.
func checkSamples(t *testing.T, c *runfile.Config, steps ...int64) []Sample {
	t.Helper()
	all := samplesOf(t, c.OutputDir)
	var got, want []string
	for _, s := range all {
		got = append(got, fmt.Sprint(s.Step, s.Number, s.Prompt))
		if n := len(s.Tokens); n > c.Samples.MaxTokens || n < c.Samples.MaxTokens && s.Finish != generate.FinishStop ||
			s.PromptTokens < 2 {
			t.Errorf("%+v", s)
		}
	}
	for _, step := range steps {
		for i, p := range c.Samples.Prompts {
			want = append(want, fmt.Sprint(step, i+1, p))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("samples %v, want %v", got, want)
	}
	return all
}

// sampledRun writes three texts after every second step, of which there are four, and saves there.
func sampledRun(t *testing.T) *runfile.Config {
	c := smallConfig(t)
	c.MaxSteps, c.Save, c.Samples = 4, runfile.Save{Every: 2, AtEnd: true}, someSamples(2)
	return c
}

// Samples after a step equal the texts that millrace generate makes of its checkpoint, wherever the run keeps its
// state.
func TestSamplesAreWhatGenerateMakes(t *testing.T) {
	base := sampledRun(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	var first []Sample
	for _, p := range placementsOf(t, base) {
		c := *base
		c.Memory, c.OutputDir = p.memory, filepath.Join(t.TempDir(), "run")
		env := newEnv(t)
		env.CacheDir, env.Tests.ProgramBytes = p.cache, 1
		if _, err := Train(t.Context(), &c, Options{Env: env}); err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		all := checkSamples(t, &c, 0, 2, 4)
		if first != nil {
			if fmt.Sprint(all) != fmt.Sprint(first) {
				t.Errorf("%s: samples %v, in memory %v", p.name, all, first)
			}
			continue
		}
		first = all
		for step, of := range [][]Sample{all[:3], all[3:6], all[6:]} {
			o := generate.Options{Model: checkpointOf(&c, 2*step), Tokenizer: "bytes", MaxTokens: c.Samples.MaxTokens,
				Temperature: c.Samples.Temperature, TopP: c.Samples.TopP, Seed: c.Samples.Seed, Compute: "f32"}
			n := 0
			prompts := []string{"the wheel", "turns", "th"}
			err := generate.Each(t.Context(), newEnv(t), o, prompts, func(g *generate.Generated) error {
				if s := of[n]; !slices.Equal(s.Tokens, g.Tokens) || s.Text != g.Text || s.Finish != g.Finish {
					t.Errorf("step %d: sample %+v, generated %+v", 2*step, s, g)
				}
				n++
				return nil
			})
			if err != nil || n != 3 {
				t.Fatal(n, err)
			}
		}
	}
}

// checkpointOf is the checkpoint of a run after a step, or its model.
func checkpointOf(c *runfile.Config, step int) string {
	if step == 0 {
		return c.Model
	}
	return filepath.Join(rundir.CheckpointsDir(c), checkpoint.DirName(step))
}

// In a run on conversations a user says the prompt, or it is a list of messages, and the sample is the answer that
// millrace chat has.
func TestSamplesOfConversations(t *testing.T) {
	c := sampledRun(t)
	write(t, filepath.Join(c.Model, "chat_template.jinja"), turnTemplate)
	c.Datasets = []data.Source{writeDialogs(t, data.Messages, dialogs(40))}
	c.Samples.Temperature = 0
	c.Samples.Prompts = []data.Prompt{{Text: "what is 1 + 1?"}, {Messages: []data.Message{
		{Role: data.System, Content: "be brief"}, {Role: data.User, Content: "what is 1 + 2?"}}}}
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, s := range checkSamples(t, c, 0, 2, 4) {
		o := generate.ChatOptions{Options: generate.Options{Model: checkpointOf(c, int(s.Step)), Tokenizer: "bytes",
			MaxTokens: c.Samples.MaxTokens, Compute: "f32"}}
		if s.Number == 2 {
			o.System = "be brief"
		}
		a, err := talkTo(t, o).Say(t.Context(), nil, lastOf(s.Prompt), nil)
		if err != nil || !slices.Equal(a.Tokens, s.Tokens) || a.PromptTokens != s.PromptTokens {
			t.Errorf("sample %+v, said %+v, %v", s, a, err)
		}
	}
	if want := `sample 2 after step 2: "what is 1 + 2?" -> "`; !strings.Contains(said.String(), want) {
		t.Errorf("it says\n%s\nand not\n%s", said.String(), want)
	}
}

// Prompts that the model cannot be asked for end the run before it begins, by their key.
func TestSamplesRefuse(t *testing.T) {
	prompts := func(text string) string {
		path := filepath.Join(t.TempDir(), "prompts.jsonl")
		write(t, path, text)
		return path
	}
	hello := []data.Message{{Role: data.User, Content: "hello"}}
	for name, c := range map[string]struct {
		change func(c *runfile.Config)
		want   string
	}{
		"too long": {func(c *runfile.Config) { c.Samples.Prompts[1].Text = strings.Repeat("x", 128) },
			"samples.prompts[1]: it has 128 tokens, and the model was made for 128 positions; shorten it"},
		"empty": {func(c *runfile.Config) { c.Samples.Prompts[0].Text = "" }, "samples.prompts[0]: it is empty"},
		"messages without a template": {func(c *runfile.Config) { c.Samples.Prompts[2] = data.Prompt{Messages: hello} },
			"samples.prompts[2]: it is a list of messages, and the model has no chat template"},
		"a template that renders nothing": {func(c *runfile.Config) {
			write(t, filepath.Join(c.Model, "chat_template.jinja"),
				"{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}")
			c.Samples.Prompts = []data.Prompt{{Messages: hello}}
		}, "samples.prompts[0]: the chat template makes an empty text of it"},
		"no such file": {func(c *runfile.Config) { c.Samples.PromptsFile = "no.jsonl" },
			"samples.prompts_file: stat no.jsonl"},
		"a file of other lines": {func(c *runfile.Config) { c.Samples.PromptsFile = prompts("{}\n") }, "line 1 of "},
		"too long, in a file": {func(c *runfile.Config) {
			c.Samples.PromptsFile = prompts("{\"prompt\": \"a\"}\n{\"prompt\": \"" + strings.Repeat("x", 200) + "\"}\n")
		}, "samples.prompts_file: entry 1, from 0: it has 200 tokens"},
		"no room": {func(c *runfile.Config) {
			c.Model = writeModel(t, map[string]any{"max_position_embeddings": 1 << 20})
			c.Samples.MaxTokens, c.Memory.Host = 1<<19, budget(t, "100MiB").Device
		}, "and with the caches of a text of 524296 positions they do not: memory."},
	} {
		t.Run(name, func(t *testing.T) {
			run := sampledRun(t)
			c.change(run)
			_, err := Train(t.Context(), run, Options{Env: newEnv(t)})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, c.want)
			}
			if left := files(t, run.OutputDir); left != nil {
				t.Errorf("a run that has not begun leaves %v", left)
			}
		})
	}
}

// A run that is stopped while the model writes is saved without the texts of that step, and writes them when it
// continues: all of them, each once.
func TestInterruptedSamples(t *testing.T) {
	whole := sampledRun(t)
	want, err := Train(t.Context(), whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{2, 4} {
		c := *whole
		c.OutputDir = filepath.Join(t.TempDir(), "stopped")
		stop, doing := make(chan struct{}), fmt.Sprintf("ending the samples, and saving step %d", step)
		var env *session.Env
		end := sync.OnceFunc(func() { close(stop) })
		env = wrappedEnv(t, func(d device.Device) device.Device {
			return &recording{d, func() {
				if env.Finishes() == doing {
					end()
				}
			}}
		})
		env.Stop = stop
		if _, err := Train(t.Context(), &c, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
			t.Fatal(err)
		}
		checkSamples(t, &c, []int64{0, 2}[:step/2]...)
		// Of samples that a kill has cut short there are some of a step; they are written again.
		if step == 4 {
			name := filepath.Join(c.OutputDir, rundir.SamplesName)
			doc, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			line := string(doc[:bytes.IndexByte(doc, '\n')+1])
			write(t, name, string(doc)+strings.Replace(line, `"step":0`, `"step":4`, 1))
		}
		got, err := Train(t.Context(), &c, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		sameModel(t, got.Model, want.Model)
		if a, b := checkSamples(t, &c, 0, 2, 4), samplesOf(t, whole.OutputDir); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("samples %v, without a break %v", a, b)
		}
	}
}

// Where a kill has cut the samples of a step short, those of the steps before stay.
func TestSamplesThatWereCutShort(t *testing.T) {
	c := sampledRun(t)
	c.Samples.Every = 1
	until(t, c, "step 1/4")
	name := filepath.Join(c.OutputDir, rundir.SamplesName)
	doc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(doc), "\n")
	write(t, name, strings.Join(lines[:4], "")) // three of step 0, and one of step 1
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	checkSamples(t, c, 0, 1, 2, 3, 4)
}

// recording is a device whose streams call f with each event that they record.
type recording struct {
	device.Device
	f func()
}

func (r *recording) NewStream(name string) (device.Stream, error) {
	s, err := r.Device.NewStream(name)
	return recordingStream{s, r.f}, err
}

type recordingStream struct {
	device.Stream
	f func()
}

func (s recordingStream) Record(e device.Event) {
	s.f()
	s.Stream.Record(e)
}

// A file of samples that cannot be written ends no run, and misses no line when it can be written again.
func TestSamplesThatCannotBeWritten(t *testing.T) {
	for name, recovers := range map[string]bool{"for a while": true, "to the end": false} {
		t.Run(name, func(t *testing.T) {
			c := sampledRun(t)
			drive := vfs.NewFaulty(vfs.OS{})
			refused := 0
			drive.Intercept(func(op vfs.Op) (out vfs.Outcome) {
				if op.Kind == vfs.OpWrite && filepath.Base(op.Name) == rundir.SamplesName && (!recovers || refused < 5) {
					refused++
					out.Err = syscall.ENOSPC
				}
				return out
			})
			env := newEnv(t)
			env.FS = drive
			var said strings.Builder
			env.Progress = &said
			if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(said.String(), "warning: samples.jsonl cannot be written: ") {
				t.Errorf("it says\n%s", said.String())
			}
			lost := strings.Contains(said.String(), "warning: the last 9 records of samples.jsonl are not written")
			if recovers {
				checkSamples(t, c, 0, 2, 4)
			}
			if lost == recovers {
				t.Errorf("it says\n%s", said.String())
			}
		})
	}
}

// A model whose logits are not finite writes nothing, and the run ends as it does without samples.
func TestSamplesOfADivergedModel(t *testing.T) {
	c := sampledRun(t)
	name := filepath.Join(c.Model, "model.safetensors")
	weights, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(weights) - 4; at > len(weights)/2; at -= 4 {
		copy(weights[at:], "\xe6\xb1\x61\x7f") // 3e38, whose sums are infinite
	}
	write(t, name, string(weights))
	env := newEnv(t)
	var said strings.Builder
	env.Progress = &said
	_, err = Train(t.Context(), c, Options{Env: env})
	if err == nil || strings.Contains(err.Error(), "sample") {
		t.Errorf("error %v", err)
	}
	want := "warning: there are no samples before training: the model's logits are not finite"
	if !strings.Contains(said.String(), want) {
		t.Errorf("it says\n%s\nand not\n%s", said.String(), want)
	}
	checkSamples(t, c)
}
