package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// A run notes in save.fallback whose the directory is, and finds its checkpoints there: also one of an older version,
// which has noted nothing.
func TestFallbackIsNoted(t *testing.T) {
	c := stoppedInFallback(t)
	id := idOf(t, c)
	note := filepath.Join(filepath.Dir(id.FallbackDir(c)), rundir.OutsideName)
	doc, err := os.ReadFile(note)
	if err != nil || !strings.Contains(string(doc), string(id.Run)) {
		t.Fatalf("%s is %s, error %v", note, doc, err)
	}
	if id.Inode != nil && id.Inode.Born == 0 {
		t.Skip("the file system has no times of birth")
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	got, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 7 {
		t.Errorf("%+v, error %v", got, err)
	}
	if _, err := os.Stat(note); err != nil {
		t.Error(err)
	}
}

// A run whose directory in save.fallback is another's continues from its own checkpoints, as a copy.
func TestForeignFallback(t *testing.T) {
	c := smallConfig(t)
	c.OutputDir = filepath.Join(t.TempDir(), "run")
	c.Save.Every = 1
	until(t, c, "step  3/12")
	id := idOf(t, c)
	c.Save.Fallback = t.TempDir()
	at := id.FallbackDir(c)
	copyTree(t, rundir.CheckpointsDir(c), at)
	other := *id
	other.Dir, other.Inode = "/elsewhere", &vfs.Inode{Device: 1, Number: 1, Born: 1}
	h := rundir.NewHome(newEnv(t).Runs(), c)
	h.ID = other
	h.NoteOwner("save.fallback", filepath.Dir(at), rundir.OutsideName)
	before := files(t, c.Save.Fallback)
	stop := make(chan struct{})
	env := newEnv(t)
	env.Stop, env.Progress = stop, &stopper{"step  5/12", stop}
	got, err := Train(context.Background(), c, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || got.ResumedAfter != 3 {
		t.Fatalf("%+v, error %v", got, err)
	}
	if now := idOf(t, c); now.Run == id.Run || now.FallbackDir(c) == at {
		t.Errorf("it is %+v, was %+v", now, id)
	}
	for name, text := range files(t, c.Save.Fallback) {
		if before[name] != text {
			t.Errorf("%s has changed", name)
		}
	}
}
