package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/vfs"
)

// roomFS is the system's files on a drive that has so much left.
type roomFS struct {
	vfs.OS
	free int64
}

func (f roomFS) FreeBytes(dir string) (int64, error) {
	if _, err := os.Stat(dir); err != nil {
		return 0, err
	}
	return f.free, nil
}

// TestSpaceIsPlanned: a run that has no room for its checkpoints and its model says so before its first step, in a
// line that names the numbers to change; one that has just enough trains.
func TestSpaceIsPlanned(t *testing.T) {
	model := writeModel(t, nil)
	text := filepath.Join(t.TempDir(), "a.jsonl")
	write(t, text, strings.Repeat("{\"text\": \"to be or not to be\"}\n", 40))
	for name, c := range map[string]struct {
		save        string
		checkpoints int64 // that there is to be room for
		models      int64
	}{
		"at the end alone": {"{}", 1, 1},
		"keep 2":           {"{every: 1, keep: 2}", 3, 0},
		"keep 1":           {"{every: 1, keep: 1}", 2, 0},
		"all are kept":     {"{every: 1, keep: 0}", 1, 1},
		"few steps":        {"{every: 3, keep: 5}", 2, 1},
		"none":             {"{minutes: 0, at_end: false}", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(free int64) (*plan.Plan, string, error) {
				out := filepath.Join(t.TempDir(), "run")
				c, err := configOf(t, fmt.Sprintf("model: %q\ntokenizer: bytes\nsequence_len: 32\nbatch_tokens: 64\nmax_steps: 4\ndatasets: [{path: %q, type: text}]\noutput_dir: %q\nsave: %s\n",
					model, text, out, c.save))
				if err != nil {
					t.Fatal(err)
				}
				env := newEnv(t)
				var said strings.Builder
				env.Progress, env.FS = &said, roomFS{free: free}
				_, err = Train(context.Background(), c, Options{Env: env})
				var p plan.Plan
				if err == nil {
					doc, errRead := os.ReadFile(filepath.Join(out, "plan.json"))
					if err := errors.Join(errRead, json.Unmarshal(doc, &p)); err != nil {
						t.Fatal(err)
					}
				} else if _, gone := os.Stat(out); gone == nil {
					t.Error("a start that was refused has left its directory")
				}
				return &p, said.String(), err
			}
			p, said, err := run(1 << 40)
			if err != nil {
				t.Fatal(err)
			}
			s := p.Space
			need := max(c.checkpoints*s.CheckpointBytes, (c.checkpoints-1)*s.CheckpointBytes+c.models*s.ModelBytes)
			if c.models > 0 {
				need = c.checkpoints*s.CheckpointBytes + c.models*s.ModelBytes
			}
			if name == "few steps" {
				need = 2*s.CheckpointBytes + s.ModelBytes
			}
			if s.PeakBytes != need {
				t.Fatalf("%d bytes are planned, want %d: %+v", s.PeakBytes, need, s)
			}
			if strings.Contains(said, "warning") {
				t.Errorf("it warns: %s", said)
			}
			if _, said, err = run(need); err != nil {
				t.Errorf("with just enough: %v", err)
			}
			if got := strings.Contains(said, "output_dir is full after step"); got != s.AllKept {
				t.Errorf("it says %q", said)
			}
			_, _, err = run(need - 1)
			if !errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v", err)
			}
			for _, key := range []string{"output_dir", plan.FormatBytes(need), "set output_dir to a larger drive"} {
				if !strings.Contains(err.Error(), key) {
					t.Errorf("%q does not name %s", err, key)
				}
			}
			helps := name == "keep 2" || name == "few steps" // where fewer checkpoints have room
			if got := strings.Contains(err.Error(), "lower save.keep"); got != helps {
				t.Errorf("%q: does save.keep help? %v", err, helps)
			}
			if s.Checkpoints == 1 != strings.Contains(err.Error(), "up to 1 checkpoint of ") {
				t.Error(err)
			}
			if s.Checkpoints == 0 {
				return
			}
			if _, _, err = run(s.CheckpointBytes - 1); err == nil || strings.Contains(err.Error(), "save.keep") {
				t.Errorf("without room for one checkpoint: %v", err)
			}
		})
	}
}
