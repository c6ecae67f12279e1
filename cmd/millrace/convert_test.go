package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/runfile/convert"
)

// The run file goes to standard output, or to a file that is not there yet, and is one that plan takes.
func TestConvert(t *testing.T) {
	w := newWorkshop(t)
	w.write("train.yaml", "model_name_or_path: "+w.path("model")+"\nstage: sft\nfinetuning_type: full\ndataset: a\n"+
		"cutoff_len: 32\nlora_rank: 8\nbf16: true\n")
	text := invoke(t, "convert", w.path("train.yaml")).must(t).stdout
	if !strings.Contains(text, "sequence_len: 32") || !strings.Contains(text, "lora_rank") {
		t.Error(text)
	}
	summary := invoke(t, "convert", w.path("train.yaml"), w.path("new.yaml")).must(t).stdout
	if !strings.Contains(summary, "to decide:\n") || w.read("new.yaml") != text {
		t.Errorf("%s\n%s", summary, w.read("new.yaml"))
	}
	if c, err := runfile.Read(w.path("new.yaml"), nil); err != nil || c.SequenceLen != 32 || c.Model != w.path("model") {
		t.Errorf("%+v, %v", c, err)
	}
	if r := invoke(t, "convert", w.path("train.yaml"), w.path("new.yaml")); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "is there already") || w.read("new.yaml") != text {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	r := jsonOf[convert.Result](t, invoke(t, "convert", w.path("train.yaml"), "--json").must(t).stdout)
	if r.Tool != convert.LLaMAFactory || r.RunFile != text || len(r.Settings) == 0 || len(r.LeftOut) == 0 ||
		len(r.Decide) == 0 {
		t.Errorf("%+v", r)
	}
	w.write("run.yaml", w.read("train.yaml"))
	if r := invoke(t, "train", w.path("run.yaml")); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "millrace convert") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}

// What cannot be trained is refused in a line, with status 1, and is written with --force. A model that is here is
// judged by its config.json.
func TestConvertRefuses(t *testing.T) {
	w := newWorkshop(t)
	w.write("train.yaml", "base_model: "+w.path("model")+"\nprocessor_type: AutoProcessor\nrl: grpo\n")
	r := invoke(t, "convert", w.path("train.yaml"), w.path("new.yaml"))
	for _, want := range []string{"train.yaml: Millrace cannot train this: ", "rl is grpo: ",
		"; processor_type is AutoProcessor: ", " (--force writes a run file nevertheless)"} {
		if r.status != exitFailed || !strings.Contains(r.errorLine(), want) {
			t.Errorf("status %d, no %q: %s", r.status, want, r.stderr)
		}
	}
	if _, err := os.Stat(w.path("new.yaml")); err == nil || strings.Contains(r.errorLine(), "by its name") {
		t.Errorf("a file is there, or the model is refused: %v, %s", err, r.stderr)
	}
	summary := invoke(t, "convert", "--force", w.path("train.yaml"), w.path("new.yaml")).must(t).stdout
	if !strings.Contains(summary, "cannot be trained:\n  rl is grpo: ") ||
		!strings.Contains(w.read("new.yaml"), "# Millrace cannot train what that file asks for:\n#   - rl is grpo: ") {
		t.Errorf("%s\n%s", summary, w.read("new.yaml"))
	}
	forced := invoke(t, "convert", "--force", "--json", w.path("train.yaml")).must(t)
	if j := jsonOf[convert.Result](t, forced.stdout); len(j.Cannot) != 2 {
		t.Errorf("%q", j.Cannot)
	}
}

// A file that comes to the name while the run file is written stays.
func TestWriteNew(t *testing.T) {
	w := newWorkshop(t)
	for _, comes := range []bool{true, false} {
		err := writeNew(w.path("new.yaml"), func(out io.Writer) error {
			if comes {
				w.write("new.yaml", "mine")
			}
			_, err := io.WriteString(out, "ours")
			return err
		})
		if want := map[bool]string{true: "mine", false: "ours"}[comes]; w.read("new.yaml") != want ||
			errors.Is(err, blame.ErrRequest) != comes || !comes && err != nil {
			t.Errorf("%q, error %v", w.read("new.yaml"), err)
		}
		if left, err := filepath.Glob(w.path(".*")); err != nil || len(left) > 0 {
			t.Errorf("left are %q, error %v", left, err)
		}
		os.Remove(w.path("new.yaml"))
	}
}
