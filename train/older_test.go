package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// pairsConfig is a run on prompts with answers, some of which are longer than a row.
func pairsConfig(t *testing.T) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, "{\"prompt\": \"how does it turn?\", \"response\": %q}\n", strings.Repeat("it turns. ", 1+i%9))
	}
	write(t, path, b.String())
	c.Datasets = []data.Source{{Path: path, Type: data.PromptResponse}}
	return c
}

// A checkpoint that does not name overlong was of a run whose default was split: the run continues with that, and its
// run file says so. A new run truncates what is no text.
func TestOlderRunsKeepOverlong(t *testing.T) {
	whole := pairsConfig(t)
	whole.Overlong = "split"
	want, err := Train(context.Background(), whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	older := *whole
	older.OutputDir = filepath.Join(t.TempDir(), "older")
	until(t, &older, "step  5/12")
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(&older))
	if err != nil {
		t.Fatal(err)
	}
	if long, named := last.Manifest.Mathematics["overlong"]; named {
		t.Fatalf("the checkpoint says overlong is %q, as no older one does", long)
	}
	older.Overlong = runfile.Defaults().Overlong
	got, err := Train(context.Background(), &older, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 5 {
		t.Fatalf("%+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	resolved, err := runfile.Read(filepath.Join(older.OutputDir, rundir.ResolvedName), nil)
	if err != nil || resolved.Overlong != "split" {
		t.Errorf("the run file says overlong is %q, error %v", resolved.Overlong, err)
	}

	again := *whole
	again.Overlong, again.OutputDir = runfile.Defaults().Overlong, filepath.Join(t.TempDir(), "again")
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	sum, err := Train(context.Background(), &again, Options{Env: env})
	if err != nil || sum.Truncated == 0 || sum.Split != 0 || sum.CutTokens == 0 {
		t.Errorf("%+v, error %v", sum, err)
	}
	if !strings.Contains(said.String(), " of 60 documents longer than sequence_len (64): truncated, ") ||
		!strings.Contains(said.String(), "(overlong: auto); to change that, ") {
		t.Errorf("it says\n%s", said.String())
	}
	resolved, err = runfile.Read(filepath.Join(again.OutputDir, rundir.ResolvedName), nil)
	if err != nil || resolved.Overlong != "auto" {
		t.Errorf("the run file says overlong is %q, error %v", resolved.Overlong, err)
	}
	// To change it takes resume_with, as for any other setting.
	again.Overlong = "drop"
	_, err = Train(context.Background(), &again, Options{Env: newEnv(t)})
	if err == nil || !strings.Contains(err.Error(), "overlong was auto, is now drop") {
		t.Errorf("error %v", err)
	}
}

// A run that was killed before its first checkpoint starts over as it was, also where its run file does not name
// overlong.
func TestOlderRunsStartOverAsTheyWere(t *testing.T) {
	c := pairsConfig(t)
	c.Overlong = "split"
	until(t, c, "step  2/12")
	if err := os.RemoveAll(rundir.CheckpointsDir(c)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.OutputDir, rundir.ResolvedName)
	doc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	write(t, name, strings.Replace(string(doc), "overlong: split\n", "", 1))
	id, err := newEnv(t).Runs().ReadIdentity(c.OutputDir)
	if err != nil {
		t.Fatal(err)
	}
	id.Asked = nil // which older versions did not note
	if doc, err = id.Encode(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(c.OutputDir, rundir.IdentityName), string(doc))
	c.Overlong = runfile.Defaults().Overlong
	sum, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || sum.ResumedAfter != 0 || sum.Split == 0 || sum.Truncated != 0 {
		t.Errorf("%+v, error %v", sum, err)
	}
}
