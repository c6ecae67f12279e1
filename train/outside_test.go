package train

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/vfs"
)

// A directory outside of the output directory is a run's if its note says so. Without a note, as of older versions, it
// is if the record in run.json has the time of birth, which cannot be guessed.
func TestOwnsOutside(t *testing.T) {
	run := checkpoint.RunID(strings.Repeat("a", 32))
	home := vfs.Inode{Device: 1, Number: 2, Born: 3}
	id := identity{Run: run, Dir: "/runs/a", Inode: &home}
	noTime := home
	noTime.Born = 0
	old := id
	old.Inode = &noTime
	none := id
	none.Inode = nil
	other := func(change func(o *outside)) *outside {
		o := outside{id.Run, id.Dir, &home}
		change(&o)
		return &o
	}
	for what, c := range map[string]struct {
		note *outside
		id   identity
		want bool
	}{
		"its note":                       {other(func(*outside) {}), id, true},
		"moved since":                    {other(func(o *outside) { o.Dir = "/runs/b" }), id, true},
		"another run":                    {other(func(o *outside) { o.Run = checkpoint.NewRunID() }), id, false},
		"another directory":              {other(func(o *outside) { o.Inode = &vfs.Inode{Device: 1, Number: 9, Born: 3} }), id, false},
		"made at another time":           {other(func(o *outside) { o.Inode = &noTime }), id, false},
		"mounted again":                  {other(func(o *outside) { o.Inode = &vfs.Inode{Device: 7, Number: 2, Born: 3} }), id, true},
		"moved to another file system":   {other(func(o *outside) { o.Dir, o.Inode = "/x", &vfs.Inode{Device: 7, Number: 2, Born: 3} }), id, false},
		"no note":                        {nil, id, true},
		"no note, no time":               {nil, old, false},
		"its note, no time":              {other(func(o *outside) { o.Inode = &noTime }), old, true},
		"no note, no inodes here":        {nil, none, true},
		"a note without inode, here one": {other(func(o *outside) { o.Inode = nil }), id, false},
		"no inodes at all":               {other(func(o *outside) { o.Inode = nil }), none, true},
	} {
		for name, isUsed := range map[string]bool{"with files": true, "empty": false} {
			dir := t.TempDir()
			if c.note != nil {
				doc, err := json.Marshal(c.note)
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(dir, outsideName), string(doc))
			}
			if isUsed {
				mkdir(t, filepath.Join(dir, checkpointsName, "step-000001"))
			}
			env := newEnv(t)
			if got := env.owns(&c.id, dir, outsideName, env.hasNoSaves); got != (c.want || !isUsed) {
				t.Errorf("%s, %s: %v", what, name, got)
			}
		}
	}
	for _, damaged := range []string{"", "{", `{"run":1}`, strings.Repeat(" ", maxOutsideBytes+1), strings.Repeat("[", 30000)} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, outsideName), damaged)
		mkdir(t, filepath.Join(dir, checkpointsName, "step-000001"))
		if env := newEnv(t); env.owns(&id, dir, outsideName, env.hasNoSaves) {
			t.Errorf("a note of %.20q proves something", damaged)
		}
	}
}

// A run notes in save.fallback whose the directory is, and finds its checkpoints there: also one of an older version,
// which has noted nothing.
func TestFallbackIsNoted(t *testing.T) {
	c := stoppedInFallback(t)
	id := idOf(t, c)
	note := filepath.Join(filepath.Dir(id.fallbackDir(c)), outsideName)
	doc, err := os.ReadFile(note)
	var o outside
	if err != nil || json.Unmarshal(doc, &o) != nil || !o.isOf(id) {
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
	at := id.fallbackDir(c)
	copyTree(t, checkpointsDir(c), at)
	other := *id
	other.Dir, other.Inode = "/elsewhere", &vfs.Inode{Device: 1, Number: 1, Born: 1}
	h := home{env: newEnv(t), config: c, id: other}
	h.noteOwner("save.fallback", filepath.Dir(at), outsideName)
	before := files(t, c.Save.Fallback)
	stop := make(chan struct{})
	env := newEnv(t)
	env.Stop, env.Progress = stop, &stopper{"step  5/12", stop}
	got, err := Train(context.Background(), c, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) || got.ResumedAfter != 3 {
		t.Fatalf("%+v, error %v", got, err)
	}
	if now := idOf(t, c); now.Run == id.Run || now.fallbackDir(c) == at {
		t.Errorf("it is %+v, was %+v", now, id)
	}
	for name, text := range files(t, c.Save.Fallback) {
		if before[name] != text {
			t.Errorf("%s has changed", name)
		}
	}
}
