package rundir

import (
	"encoding/json"
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
	id := Identity{Run: run, Dir: "/runs/a", Inode: &home}
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
		id   Identity
		want bool
	}{
		"its note":    {other(func(*outside) {}), id, true},
		"moved since": {other(func(o *outside) { o.Dir = "/runs/b" }), id, true},
		"another run": {other(func(o *outside) { o.Run = checkpoint.NewRunID() }), id, false},
		"another directory": {other(func(o *outside) { o.Inode = &vfs.Inode{Device: 1, Number: 9, Born: 3} }),
			id, false},
		"made at another time": {other(func(o *outside) { o.Inode = &noTime }), id, false},
		"mounted again": {other(func(o *outside) { o.Inode = &vfs.Inode{Device: 7, Number: 2, Born: 3} }),
			id, true},
		"moved to another file system": {other(func(o *outside) {
			o.Dir, o.Inode = "/x",
				&vfs.Inode{Device: 7, Number: 2, Born: 3}
		}), id, false},
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
				write(t, filepath.Join(dir, OutsideName), string(doc))
			}
			if isUsed {
				mkdir(t, filepath.Join(dir, CheckpointsName, "step-000001"))
			}
			f := Files{FS: vfs.OS{}}
			if got := f.owns(&c.id, dir, OutsideName, f.hasNoSaves); got != (c.want || !isUsed) {
				t.Errorf("%s, %s: %v", what, name, got)
			}
		}
	}
	for _, damaged := range []string{"", "{", `{"run":1}`, strings.Repeat(" ", maxOutsideBytes+1),
		strings.Repeat("[", 30000)} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, OutsideName), damaged)
		mkdir(t, filepath.Join(dir, CheckpointsName, "step-000001"))
		if f := (Files{FS: vfs.OS{}}); f.owns(&id, dir, OutsideName, f.hasNoSaves) {
			t.Errorf("a note of %.20q proves something", damaged)
		}
	}
}

// A name from run.json becomes that of directories that a run cleans, below save.fallback and memory.path: only the
// form that a run gives it is one.
func TestIdentityNamesADirectory(t *testing.T) {
	fresh := Files{FS: vfs.OS{}}.NewIdentity(filepath.Join(t.TempDir(), "run"))
	short := "-" + fresh.Run.Short()
	for name, isOne := range map[string]bool{fresh.Name: true, "run" + short: true, "..." + short: true, "": false,
		".": false, "..": false, "run": false, "run-0123456": false, short[1:]: false, "../run" + short: false,
		"/" + short: false, "run/" + short: false} {
		id := fresh
		id.Name = name
		doc, err := id.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeIdentity(doc); (err == nil) != isOne || isOne && got.Name != name {
			t.Errorf("%q: %+v, error %v", name, got, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}
