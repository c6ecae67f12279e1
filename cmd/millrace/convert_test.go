package main

import (
	"strings"
	"testing"

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
