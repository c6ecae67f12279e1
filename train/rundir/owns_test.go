package rundir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
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

// ok ends a test at an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// told are files that keep what they tell.
type told struct {
	Files
	notes, warnings []string
}

func newTold() *told {
	f := &told{}
	f.Files = Files{FS: vfs.OS{},
		Note: func(format string, args ...any) { f.notes = append(f.notes, fmt.Sprintf(format, args...)) },
		Warn: func(format string, args ...any) { f.warnings = append(f.warnings, fmt.Sprintf(format, args...)) }}
	return f
}

// has reports whether one of the texts has a part.
func has(texts []string, part string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) })
}

// save makes the checkpoint of a step of a run, with what is to be in its manifest, and returns its path.
func save(t *testing.T, dir string, run checkpoint.RunID, step int, m checkpoint.Manifest) string {
	t.Helper()
	d, err := checkpoint.Acquire(vfs.OS{}, dir, checkpoint.Owner{Run: run})
	ok(t, err)
	defer d.Close()
	weights := checkpoint.Spec{ID: checkpoint.ID{Part: "norm", Kind: store.Weights}, DType: tensor.F32, Bytes: 16,
		PieceBytes: 16}
	w, err := d.Create(step, []checkpoint.Spec{weights})
	ok(t, err)
	ok(t, w.Add(weights.ID, 0, make([]byte, 16)))
	m.Run, m.Updates = run, int64(step)
	path, err := w.Commit(m)
	ok(t, err)
	return path
}

// writeModel makes a model directory whose weights are one number, with a card of a step if that is not negative.
func writeModel(t *testing.T, dir string, weight float32, step int) {
	t.Helper()
	ok(t, os.MkdirAll(dir, 0o755))
	write(t, filepath.Join(dir, "config.json"), "{}")
	w, err := hf.CreateFile(filepath.Join(dir, "model.safetensors"),
		[]hf.TensorSpec{{Name: "w", DType: tensor.F32, Shape: tensor.Shape{1}}})
	ok(t, err)
	ok(t, w.Write("w", hf.BytesOf([]float32{weight})))
	ok(t, w.Commit())
	if step >= 0 {
		write(t, filepath.Join(dir, hf.CardName), fmt.Sprintf("---\nlicense: mit\n%s%d\n---\n", StepKey, step))
	}
}

// sumOf is the fingerprint of a model directory.
func sumOf(t *testing.T, dir string) string {
	t.Helper()
	sum, err := hf.FingerprintOf(t.Context(), dir)
	ok(t, err)
	return sum
}

// The holder of a result's name is known by the notes of run.json: which model it is, of which step, and whether the
// run has left that step. A model without notes is known by its card.
func TestPlacedAt(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, LastModel)
	look := func(id *Identity) Placed {
		t.Helper()
		p, err := id.PlacedAt(t.Context(), dir, LastModel)
		ok(t, err)
		return p
	}
	if got := look(&Identity{}); got != (Placed{}) {
		t.Errorf("without a model: %+v", got)
	}
	mkdir(t, at)
	write(t, filepath.Join(at, "config.json"), "{}")
	if got := look(&Identity{}); got != (Placed{}) {
		t.Errorf("without weights: %+v", got)
	}
	writeModel(t, at, 1, -1)
	sum := sumOf(t, at)
	note := func(step int, sum string, left bool) result { return result{LastModel, step, sum, left} }
	other := note(7, "x", false)
	best := note(5, sum, false)
	best.Name = BestModel
	for _, c := range []struct {
		what  string
		card  int // -1: none
		notes []result
		want  Placed
	}{
		{"no notes, no card", -1, nil, Placed{Holding: OtherModel}},
		{"no notes", 4, nil, Placed{OwnModel, 4}},
		{"the other model's note", 4, []result{best}, Placed{OwnModel, 4}},
		{"notes of other weights", 4, []result{other}, Placed{Holding: OtherModel}},
		{"a note", -1, []result{other, note(6, sum, false)}, Placed{OwnModel, 6}},
		{"two notes", -1, []result{note(5, sum, false), note(6, sum, false)}, Placed{OwnModel, 6}},
		{"two notes, card of the first", 5, []result{note(5, sum, false), note(6, sum, false)}, Placed{OwnModel, 5}},
		{"two notes, the card's left", 5, []result{note(5, sum, true), note(6, sum, false)}, Placed{leftModel, 5}},
		{"a left note", -1, []result{note(6, sum, true)}, Placed{leftModel, 6}},
		{"a note, card of another step", 9, []result{note(6, sum, false)}, Placed{OwnModel, 9}},
	} {
		ok(t, os.RemoveAll(filepath.Join(at, hf.CardName)))
		writeModel(t, at, 1, c.card)
		if got := look(&Identity{Results: c.notes}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	if p := (Placed{OwnModel, 4}); !p.IsOf(4) || p.IsOf(5) || (Placed{leftModel, 4}).IsOf(4) {
		t.Error("a model is of a step that it is not of")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Identity{}).PlacedAt(ended, dir, LastModel); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// A step stands in the head of a card, in a line of its own.
func TestStepOfCard(t *testing.T) {
	for text, want := range map[string]int{"": -1, "---\nmillrace_step: 12\n---\n": 12, "millrace_step: 12\n": -1,
		"---\nlicense: mit\nmillrace_step:  7 \n---\n": 7, "---\nlicense: mit\n---\nmillrace_step: 12\n": -1,
		"---\nmillrace_step: many\n---\n": -1, "---\nmillrace_step: 0": 0} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, hf.CardName), text)
		if step, is := StepOfCard(dir); is != (want >= 0) || is && step != want {
			t.Errorf("%q: step %d, %v", text, step, is)
		}
	}
	if _, is := StepOfCard(t.TempDir()); is {
		t.Error("a directory without a card has a step")
	}
}

// A run that goes back leaves the results of later steps. Results that the latest of their name has replaced are
// forgotten,
// those of other names are not.
func TestResultsOfARun(t *testing.T) {
	id := Identity{Results: []result{{Name: BestModel, Step: 2}, {Name: LastModel, Step: 4}, {Name: LastModel, Step: 6},
		{Name: BestModel, Step: 5}}}
	if !id.HasResult(LastModel) || !id.HasResult(BestModel) || (&Identity{}).HasResult(LastModel) {
		t.Error("results are not those that are noted")
	}
	id.Leave(4)
	var left []int
	for _, r := range id.Results {
		if r.Left {
			left = append(left, r.Step)
		}
	}
	if !slices.Equal(left, []int{6, 5}) {
		t.Errorf("after step 4 the run has left %v", left)
	}
	if id.Leave(9); !id.Results[2].Left {
		t.Error("a result that was left is the run's again")
	}
	id.IsPlaced(LastModel)
	var steps []int
	for _, r := range id.Results {
		steps = append(steps, r.Step)
	}
	if !slices.Equal(steps, []int{2, 6, 5}) {
		t.Errorf("steps %v are left of the results", steps)
	}
	id.IsPlaced(BestModel)
	if len(id.Results) != 2 || id.Results[1].Step != 5 {
		t.Errorf("%+v is left", id.Results)
	}
}

// A result is noted in run.json before it has its name, once: a note that was there already becomes the latest.
func TestResultIsNotedFirst(t *testing.T) {
	c := &runfile.Config{OutputDir: t.TempDir()}
	f := newTold()
	h := NewHome(f.Files, c)
	h.ID = f.NewIdentity(c.OutputDir)
	at := filepath.Join(t.TempDir(), "staged")
	writeModel(t, at, 1, -1)
	h.ID.Results = []result{{LastModel, 3, sumOf(t, at), true}, {LastModel, 2, "x", false}}
	o := h.Replacing(t.Context(), LastModel, 3)
	if !o.Replace {
		t.Error("a result does not replace the one before")
	}
	ok(t, o.Staged(at))
	id, err := f.ReadIdentity(c.OutputDir)
	ok(t, err)
	want := []result{{LastModel, 2, "x", false}, {LastModel, 3, sumOf(t, at), false}}
	if id == nil || !slices.Equal(id.Results, want) {
		t.Errorf("run.json notes %+v", id)
	}
	if err := o.Staged(t.TempDir()); err == nil {
		t.Error("a directory without weights is noted")
	}
}

// A name below memory.path is a host's of the run if it has the run's name, alone or with a rank.
func TestStateDirs(t *testing.T) {
	c := &runfile.Config{OutputDir: "out"}
	c.Memory.Path = runfile.Paths{"state"}
	id := Identity{Name: "run-01234567"}
	for host, want := range []string{"run-01234567", "run-01234567-rank-1", "run-01234567-rank-2"} {
		if got := id.StateDirsOf(c, host)[0]; got != filepath.Join("state", want) || !id.isStateOf(filepath.Base(got)) {
			t.Errorf("host %d has its state in %s", host, got)
		}
	}
	for _, name := range []string{"", "run", "run-01234567-rank-", "run-01234567-rank-x", "run-01234567-1",
		"other-01234567-rank-1"} {
		if id.isStateOf(name) {
			t.Errorf("%q is state of the run", name)
		}
	}
	if at := id.FallbackDir(c); at != "" {
		t.Errorf("without save.fallback it is %s", at)
	}
	c.Save.Fallback = "other"
	if at, want := id.FallbackDir(c), filepath.Join("other", id.Name, CheckpointsName); at != want {
		t.Errorf("save.fallback has %s, want %s", at, want)
	}
}

// step is a record of a step in tests.
type step struct{ Step, X int64 }

// openSteps opens a file of such records.
func openSteps(f trace.File, last int64) (*trace.RecordFile[step], error) {
	return trace.NewRecordFile(f, trace.Records[step]{What: "steps", LineBytes: 100,
		Parse: func(line []byte) (s step, at int64, ok bool) {
			err := json.Unmarshal(line, &s)
			return s, s.Step, err == nil && s.Step > 0
		}}, last)
}

// read is the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	ok(t, err)
	return string(text)
}

// A file of records keeps those up to the step that a run continues from. One with a line that is no record goes to a
// name that is free, and a new one begins.
func TestRecordFileBegins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "steps.jsonl")
	f := newTold()
	begin := func(last int) *RecordFile[step] {
		t.Helper()
		r := NewRecordFile(f.Files, path, openSteps)
		ok(t, r.Begin(last))
		return &r
	}
	r := begin(-1)
	r.Append(step{1, 10})
	r.Append(step{2, 20})
	r.Append(step{2, 21})
	r.Append(step{3, 30})
	r.Sync()
	r.Close()
	r = begin(2)
	if r.Had(2) != 2 || r.Had(1) != 0 {
		t.Errorf("it had %d records of step 2, and %d of step 1", r.Had(2), r.Had(1))
	}
	r.Amend(2, func(s *step) { s.X++ })
	r.Append(step{3, 33})
	if waiting, err := r.End(); waiting != 0 || err != nil {
		t.Errorf("%d records wait: %v", waiting, err)
	}
	r.Close()
	want := `{"Step":1,"X":10}
{"Step":2,"X":20}
{"Step":2,"X":22}
{"Step":3,"X":33}
`
	if got := read(t, path); got != want {
		t.Errorf("the file has %s", got)
	}
	for n, aside := range []string{".damaged", ".damaged-2", ".damaged-3"} {
		write(t, path, "no record\n")
		r := begin(9)
		r.Append(step{9, int64(n)})
		r.Close()
		if read(t, path+aside) != "no record\n" || !strings.Contains(read(t, path), `"Step":9`) || len(f.warnings) != n+1 {
			t.Errorf("%s: %q, after %q", aside, read(t, path), f.warnings)
		}
	}
	missing := NewRecordFile(f.Files, filepath.Join(path, "below a file"), openSteps)
	if err := missing.Begin(0); err == nil || !strings.HasPrefix(err.Error(), "output_dir: ") {
		t.Errorf("a file that cannot be made: %v", err)
	}
}

// A file that was not begun writes nothing, and has nothing.
func TestRecordFileNotBegun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "steps.jsonl")
	r := NewRecordFile(newTold().Files, path, openSteps)
	r.Append(step{1, 1})
	r.Amend(1, func(*step) { t.Error("a record is changed") })
	r.Sync()
	r.Close()
	if waiting, err := r.End(); waiting != 0 || err != nil || r.Had(1) != 0 || r.Remake() != nil || vfs.Exists(path) {
		t.Errorf("%d records wait, %v", waiting, err)
	}
}

// A file whose name was removed, or given to another file, has it again with all records, and later ones go there.
func TestRecordFileIsRemade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "steps.jsonl")
	f := newTold()
	r := NewRecordFile(f.Files, path, openSteps)
	ok(t, r.Begin(-1))
	r.Append(step{1, 10})
	ok(t, r.Remake())
	before, err := os.Stat(path)
	ok(t, err)
	for i, change := range []func(){func() { ok(t, os.Remove(path)) }, func() { ok(t, os.Rename(path, path+".old")) },
		func() { write(t, path+".tmp", "left"); ok(t, os.Remove(path)) }} {
		change()
		ok(t, r.Remake())
		r.Append(step{int64(2 + i), 0})
	}
	after, err := os.Stat(path)
	ok(t, err)
	ok(t, r.Remake())
	again, err := os.Stat(path)
	ok(t, err)
	if os.SameFile(before, after) || !os.SameFile(after, again) || vfs.Exists(path+".tmp") ||
		after.Mode() != before.Mode() {
		t.Error("the file is not made where it is missing, or is made where it is there")
	}
	r.Close()
	if got := strings.Count(read(t, path), "\n"); got != 4 || len(f.warnings) > 0 {
		t.Errorf("%d records, %q", got, f.warnings)
	}
}

// full is the file system of a disk that has no room.
type full struct {
	vfs.OS
	is *bool
}

func (f full) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	file, err := f.OS.OpenFile(name, flag, perm)
	return fullFile{file, f.is}, err
}

type fullFile struct {
	vfs.File
	is *bool
}

func (f fullFile) WriteAt(b []byte, off int64) (int, error) {
	if *f.is {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(b, off)
}

// A run hears once that records cannot be written, and again after they could. What waits is written in the end.
func TestRecordsWait(t *testing.T) {
	isFull := false
	f := newTold()
	f.FS = full{is: &isFull}
	path := filepath.Join(t.TempDir(), "steps.jsonl")
	r := NewRecordFile(f.Files, path, openSteps)
	ok(t, r.Begin(-1))
	defer r.Close()
	warned := 0
	for i, is := range []bool{true, true, false, true} {
		isFull = is
		r.Append(step{int64(1 + i), 0})
		if i == 0 || i == 3 {
			warned++
		}
		if len(f.warnings) != warned {
			t.Errorf("after record %d: %q", i, f.warnings)
		}
	}
	if waiting, err := r.End(); waiting != 1 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d records wait: %v", waiting, err)
	}
	isFull = false
	if waiting, err := r.End(); waiting != 1 || err != nil || strings.Count(read(t, path), "\n") != 4 {
		t.Errorf("%d records waited, %v: %s", waiting, err, read(t, path))
	}
}

// configOf is a small run file in an output directory.
func configOf(t *testing.T, dir, more string) *runfile.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.yaml")
	write(t, path, fmt.Sprintf("model: /m\noutput_dir: %s\ndatasets:\n  - path: /data.jsonl\n    type: text\n"+
		"sequence_len: 16\nbatch_tokens: 64\nmax_steps: 4\n%s", dir, more))
	c, err := runfile.Read(path, nil)
	ok(t, err)
	return c
}

// The run file of a run goes to run.yaml, or to another name where that is the user's, and is read from there. Files
// of others at these names are left alone, and so are those that are no run file any more.
func TestResolvedFile(t *testing.T) {
	f := newTold().Files
	run := checkpoint.NewRunID()
	for _, users := range []bool{false, true} {
		dir := t.TempDir()
		c := configOf(t, dir, "")
		want := ResolvedName
		if users {
			want = OtherResolvedName
			write(t, filepath.Join(dir, ResolvedName), "model: mine\n")
		}
		if name, err := f.ResolvedIn(dir); name != "" || err != nil {
			t.Errorf("before: %q, %v", name, err)
		}
		if old, err := f.ReadResolved(dir); old != nil || err != nil {
			t.Errorf("before: %+v, %v", old, err)
		}
		for range 2 {
			ok(t, f.WriteResolved(c, run))
		}
		if name, err := f.ResolvedIn(dir); name != want || err != nil {
			t.Errorf("users %v: it is in %q, %v", users, name, err)
		}
		if users && read(t, filepath.Join(dir, ResolvedName)) != "model: mine\n" {
			t.Error("the user's run.yaml is another one")
		}
		if !strings.Contains(read(t, filepath.Join(dir, want)), string(run)) {
			t.Errorf("%s does not name the run", want)
		}
		old, err := f.ReadResolved(dir)
		if err != nil || old == nil || old.MaxSteps != 4 || old.OutputDir != dir {
			t.Errorf("it reads as %+v, %v", old, err)
		}
		write(t, filepath.Join(dir, want), runfile.ResolvedHeader+"model: [\n")
		if old, err := f.ReadResolved(dir); old != nil || err != nil {
			t.Errorf("no run file any more: %+v, %v", old, err)
		}
	}
}

// Sizes that a run has had stay, up to the positions of a micro-batch; the first key that asks for another is told.
func TestSizesStay(t *testing.T) {
	had := runfile.Sizes{MicroBatch: 4, HeadChunk: 32, BlockChunk: 64, Groups: 2}
	for _, c := range []struct {
		now     runfile.Sizes
		key     string
		is, was int
	}{
		{runfile.Sizes{}, "", 0, 0},
		{had, "", 0, 0},
		{runfile.Sizes{BlockChunk: 100}, "", 0, 0},
		{runfile.Sizes{MicroBatch: 5}, "micro_batch", 5, 4},
		{runfile.Sizes{HeadChunk: 100}, "head_chunk", 100, 32},
		{runfile.Sizes{BlockChunk: 63}, "block_chunk", 63, 64},
		{runfile.Sizes{Groups: 1}, "groups", 1, 2},
	} {
		now := c.now
		key, is, was := keepSizes(&now, had, 64)
		if key != c.key || is != c.is || was != c.was || key == "" && now != had {
			t.Errorf("%+v: %q is %d, was %d; %+v", c.now, key, is, was, now)
		}
	}
}

// A run that continues has the sizes of its checkpoint, unless its steps have another length, and does with long
// documents what it did.
func TestAdoptCuts(t *testing.T) {
	c := configOf(t, t.TempDir(), "")
	cut := SizeSettings(c)
	if _, has := cut["seed"]; has || cut["sequence_len"] != "16" || cut["batch_tokens"] != "64" || cut["overlong"] == "" ||
		cut["precision"] == "" || len(cut) != 4 || SeedSetting(c) == "" {
		t.Errorf("settings of sizes are %v, the seed is %q", cut, SeedSetting(c))
	}
	n, err := c.StepNumerics()
	ok(t, err)
	n.SequenceLen, n.MicroBatch, n.MicroBatches, n.HeadChunk, n.BlockChunk = 16, 2, 2, 8, 32
	numbers, err := json.Marshal(n)
	ok(t, err)
	from := func(change func(m *checkpoint.Manifest)) *checkpoint.Checkpoint {
		m := &checkpoint.Manifest{Mathematics: SizeSettings(c), Numerics: numbers}
		delete(m.Mathematics, "overlong")
		change(m)
		return &checkpoint.Checkpoint{Manifest: m}
	}
	if got := *c; AdoptCuts(&got, nil) != nil || got.Numerics != c.Numerics || got.Overlong != c.Overlong {
		t.Errorf("without a checkpoint: %+v", got.Numerics)
	}
	got := *c
	ok(t, AdoptCuts(&got, from(func(*checkpoint.Manifest) {})))
	if got.Numerics.MicroBatch != 2 || got.Numerics.HeadChunk != 8 || got.Overlong != "split" {
		t.Errorf("from a checkpoint: %+v, %s", got.Numerics, got.Overlong)
	}
	got = *c
	ok(t, AdoptCuts(&got, from(func(m *checkpoint.Manifest) { m.Mathematics["overlong"] = "drop" })))
	if got.Overlong != "drop" {
		t.Errorf("long documents: %s", got.Overlong)
	}
	for _, key := range []string{"sequence_len", "batch_tokens"} {
		got = *c
		got.ResumeWith = []string{"overlong"}
		ok(t, AdoptCuts(&got, from(func(m *checkpoint.Manifest) { m.Mathematics[key] = "1" })))
		if got.Numerics != c.Numerics || got.Overlong != c.Overlong {
			t.Errorf("another %s: %+v, %s", key, got.Numerics, got.Overlong)
		}
	}
	got = *c
	got.Numerics.HeadChunk = 9
	if err := AdoptCuts(&got, from(func(*checkpoint.Manifest) {})); err == nil ||
		!strings.Contains(err.Error(), "numerics.head_chunk is 9, and 8 in the checkpoint") {
		t.Errorf("another size: %v", err)
	}
	got = *c
	if err := AdoptCuts(&got, from(func(m *checkpoint.Manifest) { m.Numerics = []byte("[]") })); err == nil {
		t.Error("numerics of no version are read")
	}
}

// link makes a link, and its directory.
func link(t *testing.T, to, at string) {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(at), 0o755))
	ok(t, os.Symlink(to, at))
}

// isNotOwn reports whether an error refuses what is not the run's, and names a key.
func isNotOwn(err error, key string) bool {
	not := (*vfs.NotOwnError)(nil)
	return errors.As(err, &not) && strings.HasPrefix(err.Error(), key+": ")
}

// Links at a run's directories may lead to empty directories, that at checkpoints to the one that the run has noted,
// and that in save.fallback to checkpoints of the run alone.
func TestLinksOfARun(t *testing.T) {
	f := newTold().Files
	for what, c := range map[string]struct {
		at         string // of the link, below the output directory, save.fallback or memory.path
		key        string
		own, noted bool // it leads to checkpoints of the run; the run has noted it
		empty      bool
		fine       bool
	}{
		"checkpoints, empty":  {at: "checkpoints", empty: true, fine: true},
		"checkpoints, noted":  {at: "checkpoints", noted: true, fine: true},
		"checkpoints, own":    {at: "checkpoints", own: true, key: "output_dir"},
		"checkpoints, others": {at: "checkpoints", key: "output_dir"},
		"fallback, empty":     {at: "fallback", empty: true, fine: true},
		"fallback, own":       {at: "fallback", own: true, fine: true},
		"fallback, others":    {at: "fallback", key: "save.fallback"},
		"above, others":       {at: "above", key: "save.fallback"},
		"state, empty":        {at: "state", empty: true, fine: true},
		"state, others":       {at: "state", key: "memory.path"},
	} {
		root, to := t.TempDir(), t.TempDir()
		c2 := &runfile.Config{OutputDir: filepath.Join(root, "out")}
		c2.Save.Fallback, c2.Memory.Path = filepath.Join(root, "fallback"), runfile.Paths{filepath.Join(root, "state")}
		mkdir(t, c2.OutputDir)
		id := f.NewIdentity(c2.OutputDir)
		run := checkpoint.NewRunID()
		if c.own {
			run = id.Run
		}
		at := map[string]string{"checkpoints": CheckpointsDir(c2), "fallback": id.FallbackDir(c2),
			"above": filepath.Dir(id.FallbackDir(c2)), "state": id.StateDirs(c2)[0]}[c.at]
		switch {
		case c.empty:
		case c.at == "above":
			save(t, filepath.Join(to, CheckpointsName), run, 1, checkpoint.Manifest{})
		default:
			save(t, to, run, 1, checkpoint.Manifest{})
		}
		link(t, to, at)
		if c.noted {
			id.Saves = f.savesNoted(at)
		}
		if err := f.checkLinks(c2, &id); c.fine && err != nil || !c.fine && !isNotOwn(err, c.key) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A link at checkpoints may be read where it is noted, leads to an empty directory, or stays in the output directory.
func TestLinksThatAreRead(t *testing.T) {
	f := newTold().Files
	root := t.TempDir()
	inside, outside, empty := filepath.Join(root, "out", "real"), filepath.Join(root, "other"), filepath.Join(root,
		"empty")
	mkdir(t, empty)
	for _, to := range []string{inside, outside} {
		save(t, to, checkpoint.NewRunID(), 1, checkpoint.Manifest{})
	}
	at := filepath.Join(root, "out", CheckpointsName)
	if f.savesNoted(at) != nil || f.checkSavesRead(at, nil) != nil || f.isNoted(at, nil) {
		t.Error("a directory that is not there is a link")
	}
	for to, fine := range map[string]bool{"real": true, inside: true, outside: false, empty: true} {
		_ = os.Remove(at) // of the link before
		link(t, to, at)
		if err := f.checkSavesRead(at, nil); (err == nil) != fine {
			t.Errorf("%s: %v", to, err)
		}
		if err := f.checkSavesRead(at, f.savesNoted(at)); err != nil {
			t.Errorf("%s, noted: %v", to, err)
		}
	}
	old := Identity{Run: checkpoint.NewRunID(), Inode: &vfs.Inode{Number: 1}} // whose record has no time of birth
	if !f.ownsSaves(&old, empty) || f.ownsSaves(&old, outside) {
		t.Error("an old record proves that checkpoints are the run's, or that an empty directory is not")
	}
	users := filepath.Join(root, "held", "users") // which may be read by the link
	mkdir(t, users)
	write(t, filepath.Join(users, "notes.txt"), "")
	held := &runfile.Config{OutputDir: filepath.Join(root, "held")}
	link(t, users, CheckpointsDir(held))
	_, err := f.holdRun(held)
	entries, errRead := os.ReadDir(users)
	if !isNotOwn(err, "output_dir") || errRead != nil || len(entries) != 1 {
		t.Errorf("a link to a user's directory: %v; it has %v", err, entries)
	}
	c := &runfile.Config{OutputDir: filepath.Join(root, "run")}
	for _, name := range []string{LastModel, BestModel} {
		at := filepath.Join(c.OutputDir, name)
		link(t, empty, at)
		ok(t, f.CheckModelLinks(c))
		ok(t, os.Remove(at))
		link(t, filepath.Join(root, "gone"), at)
		ok(t, f.CheckModelLinks(c))
		ok(t, os.Remove(at))
		link(t, outside, at)
		if err := f.CheckModelLinks(c); !isNotOwn(err, "output_dir") {
			t.Errorf("%s with files: %v", name, err)
		}
		ok(t, os.Remove(at))
	}
}

// run.json says which run a directory has, until it is damaged, or copied to another directory. A file that is no
// record of a run is the user's.
func TestIdentityIsFound(t *testing.T) {
	f := newTold()
	dir := t.TempDir()
	if id, err := f.ReadIdentity(dir); id != nil || err != nil {
		t.Errorf("without run.json: %+v, %v", id, err)
	}
	h := NewHome(f.Files, &runfile.Config{OutputDir: dir})
	h.ID = f.NewIdentity(dir)
	h.ID.Ended = &Ending{Step: 4}
	ok(t, h.Claim())
	owner, err := f.OwnerOf(dir)
	if err != nil || owner.Run != h.ID.Run || !HasEnded(dir) || HasEnded(t.TempDir()) {
		t.Errorf("the directory is %+v's, %v", owner, err)
	}
	if owner, err := OwnerOf(dir); err != nil || owner.Run != h.ID.Run {
		t.Errorf("the directory is %+v's, %v", owner, err)
	}
	doc := read(t, filepath.Join(dir, IdentityName))
	there := t.TempDir()
	save(t, filepath.Join(there, CheckpointsName), h.ID.Run, 3, checkpoint.Manifest{})
	write(t, filepath.Join(there, IdentityName), doc)
	copied, err := f.IdentityOf(there, nil)
	if err != nil || copied.Run == h.ID.Run || !slices.Equal(copied.CopiedFrom, []checkpoint.RunID{h.ID.Run}) ||
		copied.Ended == nil {
		t.Errorf("a copy is %+v, %v", copied, err)
	}
	if !copied.isOfFirst("run-"+h.ID.Run.Short()) || copied.isOfFirst("run-"+copied.Run.Short()) {
		t.Error("a copy does not know the first run's directories")
	}
	alone := t.TempDir()
	write(t, filepath.Join(alone, IdentityName), doc)
	if id, err := f.IdentityOf(alone, nil); err != nil || len(id.CopiedFrom) > 0 || id.Ended != nil {
		t.Errorf("run.json alone makes %+v, %v", id, err)
	}
	ok(t, os.Remove(filepath.Join(there, IdentityName)))
	if id, err := f.IdentityOf(there, nil); err != nil || !slices.Equal(id.CopiedFrom, []checkpoint.RunID{h.ID.Run}) {
		t.Errorf("checkpoints alone make %+v, %v", id, err)
	}
	save(t, filepath.Join(there, CheckpointsName), checkpoint.NewRunID(), 4, checkpoint.Manifest{})
	if _, err := f.IdentityOf(there, nil); err == nil || !strings.Contains(err.Error(), "has checkpoints of 2 runs") {
		t.Errorf("checkpoints of two runs: %v", err)
	}
	for text, users := range map[string]bool{"{}": true, `{"a": 1}`: true, "": false, "{": false,
		strings.Replace(doc, h.ID.Name, "x"+h.ID.Name, 1): false, `{"identity": {}}`: false, `{"xxh3": "0"}`: false} {
		write(t, filepath.Join(dir, IdentityName), text)
		if id, err := f.ReadIdentity(dir); id != nil || (err != nil) != users {
			t.Errorf("run.json of %q is %+v, %v", text, id, err)
		}
	}
}

// A record of a model that an older version has written is its result.
func TestOlderRecordHasAResult(t *testing.T) {
	id := Files{FS: vfs.OS{}}.NewIdentity(t.TempDir())
	id.Ended = &Ending{Step: 4, ModelSHA256: "x"}
	for _, noted := range [][]result{nil, {{Name: BestModel, Step: 2}}} {
		id.Results = noted
		doc, err := id.Encode()
		ok(t, err)
		got, err := decodeIdentity(doc)
		ok(t, err)
		want := noted
		if noted == nil {
			want = []result{{Name: LastModel, Step: 4, WeightsSHA256: "x"}}
		}
		if !slices.Equal(got.Results, want) || got.Ended.ModelSHA256 != "" || got.Ended.Step != 4 {
			t.Errorf("with %+v: %+v", noted, got)
		}
	}
	if id.Ended = nil; id.HasDiverged() {
		t.Error("a run that has not ended has diverged")
	}
	if id.Ended = (&Ending{}); id.HasDiverged() {
		t.Error("a run that has ended has diverged")
	}
	if id.Ended.Diverged = true; !id.HasDiverged() {
		t.Error("a run that has diverged has not")
	}
}

// begun starts a run in a directory, and ends it.
func begun(t *testing.T, f *told, c *runfile.Config, during func(*Home, Beginning)) {
	t.Helper()
	path := c.Memory.Path
	h := NewHome(f.Files, c)
	b, err := h.Hold()
	ok(t, err)
	h.ID.Asked, h.ID.Begun = h.Asked, true
	ok(t, h.Claim())
	ok(t, f.WriteResolved(c, h.ID.Run))
	during(&h, b)
	h.Close(true)
	c.Memory.Path = path
}

// A run continues from its newest checkpoint, also from save.fallback, and starts over where it has none and is asked
// for the same. It begins otherwise in a directory of its own.
func TestBeginnings(t *testing.T) {
	f := newTold()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	mkdir(t, at("fallback"))
	config := func(name, more string) *runfile.Config {
		return configOf(t, at(name), "save:\n  fallback: "+at("fallback")+"\n"+more)
	}
	var run checkpoint.RunID
	two := "numerics:\n  micro_batch: 2\n"
	begun(t, f, config("out", two), func(h *Home, b Beginning) {
		if run = h.ID.Run; b.From != nil || b.HasSizes() {
			t.Errorf("a new run begins with %+v", b)
		}
		if h.ID.Dir != at("out") || h.File("x") != at("out/x") || h.MemoryPath != nil {
			t.Errorf("its home is %+v", h)
		}
	})
	begun(t, f, config("out", ""), func(h *Home, b Beginning) {
		if h.ID.Run != run || b.From != nil || b.Sizes.MicroBatch != 2 || !b.HasSizes() ||
			!has(f.notes, "the run starts over") {
			t.Errorf("without a checkpoint it begins with %+v, %q", b, f.notes)
		}
		c := config("out", "")
		if ok(t, b.AdoptSizes(c)); c.Numerics.MicroBatch != 2 {
			t.Errorf("its sizes are %+v", c.Numerics)
		}
		ok(t, f.WriteResolved(c, run))
		save(t, at("other"), run, 9, checkpoint.Manifest{})
	})
	for _, change := range []string{"numerics:\n  micro_batch: 4\n", "learning_rate: 7e-3\n"} {
		h := NewHome(f.Files, config("out", change))
		if _, err := h.Hold(); err == nil || !strings.Contains(err.Error(), "already has a run, without a checkpoint") ||
			!strings.Contains(err.Error(), "is now") {
			t.Errorf("with %s: %v", change, err)
		}
		h.Close(false)
	}
	ok(t, os.Rename(filepath.Join(at("other"), "step-000009"), filepath.Join(at("out"), CheckpointsName, "step-000009")))
	expect := func(c *runfile.Config, step int, err string) {
		t.Helper()
		h := NewHome(f.Files, c)
		b, got := h.Hold()
		switch {
		case (got != nil) != (err != "") || got != nil && !strings.Contains(got.Error(), err):
			t.Errorf("resume %s: %v", c.Resume, got)
		case got != nil:
		case step < 0 && b.From != nil, step >= 0 && (b.From == nil || b.From.Manifest.Step != step):
			t.Errorf("resume %s: it begins with %+v", c.Resume, b.From)
		}
		h.Close(false)
	}
	expect(config("out", ""), 9, "")
	expect(config("out", "learning_rate: 7e-3\n"), 9, "")
	expect(config("out", "resume: never\n"), -1, "already has checkpoints of a run")
	expect(config("new", "resume: never\n"), -1, "")
	nine := filepath.Join(at("out"), CheckpointsName, "step-000009")
	expect(config("out", "resume: "+nine+"\n"), 9, "")
	expect(config("new", "resume: "+nine+"\n"), 9, "")
	expect(config("new", "resume: "+at("gone")+"\n"), -1, "resume: ")
	if vfs.Exists(at("new")) {
		t.Error("a run that has not begun leaves a directory")
	}
	var first Identity
	begun(t, f, config("again", "resume: never\n"), func(h *Home, _ Beginning) { first = h.ID })
	ok(t, os.Remove(filepath.Join(at("again"), ResolvedName)))
	begun(t, f, config("again", "resume: never\n"), func(h *Home, _ Beginning) {
		if h.ID.Run == first.Run {
			t.Error("a run that begins where there was another one has its id")
		}
	})
	begun(t, f, config("out", ""), func(h *Home, b Beginning) {
		d, err := h.FallbackDir()
		ok(t, err)
		if again, err := h.FallbackDir(); again != d || err != nil {
			t.Errorf("save.fallback is another directory, %v", err)
		}
		ok(t, d.Close())
		h.Fallback = nil
		save(t, h.ID.FallbackDir(h.Config), run, 12, checkpoint.Manifest{UnhealthySteps: 1})
		newest, err := h.Newest(checkpoint.Query{})
		if err != nil || newest.Manifest.Step != 12 {
			t.Errorf("the newest is %+v, %v", newest, err)
		}
		if b.From.Manifest.Step != 9 {
			t.Errorf("it begins with step %d", b.From.Manifest.Step)
		}
	})
	expect(config("out", ""), 12, "")
	expect(config("out", "resume: "+nine+"\n"), -1, "is older than")
	ten := save(t, at("strange/checkpoints"), checkpoint.NewRunID(), 10, checkpoint.Manifest{})
	inside := filepath.Join(at("out"), CheckpointsName, "step-000010")
	ok(t, os.Rename(ten, inside))
	expect(config("out", "resume: "+inside+"\n"), -1, "is of another run than the one in this output_dir")
	f.notes = nil
	expect(config("out", ""), 12, "")
	if !has(f.notes, "step-000010 is a checkpoint of another run") {
		t.Errorf("notes are %q", f.notes)
	}
	var id Identity
	begun(t, f, config("out", ""), func(h *Home, _ Beginning) {
		if h.Fallback == nil {
			t.Error("a directory in save.fallback that is there is not held")
		}
		h.ID.Ended = &Ending{Step: 12, Diverged: true}
		ok(t, h.WriteIdentity())
		id = h.ID
	})
	expect(config("out", ""), 9, "") // before it diverged
	dirs, err := f.CheckpointDirs(at("out"))
	if want := []string{filepath.Join(at("out"), CheckpointsName), id.FallbackDir(config("out", ""))}; err != nil ||
		!slices.Equal(dirs, want) {
		t.Errorf("checkpoints are in %q, %v", dirs, err)
	}
	ok(t, os.RemoveAll(id.FallbackDir(config("out", ""))))
	ok(t, os.RemoveAll(nine))
	ok(t, os.RemoveAll(inside))
	mkdir(t, nine)
	write(t, filepath.Join(nine, checkpoint.ManifestName), "{")
	expect(config("out", ""), -1, "none of the 1 checkpoints")
}

// A directory that has anything of a run is refused to another one.
func TestRefuseRun(t *testing.T) {
	f := newTold().Files
	c := configOf(t, filepath.Join(t.TempDir(), "out"), "")
	ok(t, f.RefuseRun(c))
	mkdir(t, CheckpointsDir(c))
	write(t, filepath.Join(CheckpointsDir(c), "lock"), "")
	write(t, filepath.Join(c.OutputDir, ResolvedName), "model: mine\n")
	ok(t, f.RefuseRun(c))
	for _, name := range []string{LastModel, MetricsName, SamplesName, BestModel, CheckpointsName + "/step-000004"} {
		at := filepath.Join(c.OutputDir, name)
		mkdir(t, at)
		if err := f.RefuseRun(c); err == nil || !strings.HasPrefix(err.Error(), "output_dir: ") {
			t.Errorf("with %s: %v", name, err)
		}
		ok(t, os.RemoveAll(at))
	}
	// An older version has noted no settings, and split long documents.
	older := *c
	older.Overlong = "split"
	if others, _ := (&Identity{}).otherSettings(c, &older); len(others) > 0 {
		t.Errorf("a run of an older version has other settings: %q", others)
	}
	truncates := *c
	truncates.Overlong = "truncate"
	if others, _ := (&Identity{}).otherSettings(&truncates, &older); len(others) != 1 ||
		others[0] != "overlong was split, is now truncate" {
		t.Errorf("other settings are %q", others)
	}
	ok(t, f.WriteResolved(c, checkpoint.NewRunID()))
	if err := f.RefuseRun(c); err == nil || !strings.Contains(err.Error(), "already has a "+OtherResolvedName) {
		t.Errorf("with a run file: %v", err)
	}
}

// Directories below save.fallback and memory.path are noted as the run's, and what others left there is told.
func TestOthersAreTold(t *testing.T) {
	f := newTold()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	mkdir(t, at("fallback"))
	state := func(dir string) {
		mkdir(t, dir)
		write(t, filepath.Join(dir, "part-1.extent"), strings.Repeat("x", 8192))
	}
	c := configOf(t, at("out"), "save:\n  fallback: "+at("fallback")+"\nmemory:\n  path: "+at("state")+"\n")
	other := checkpoint.NewRunID()
	save(t, at("fallback/out-1234567/checkpoints"), other, 3, checkpoint.Manifest{})
	save(t, at("fallback/outer/checkpoints"), other, 5, checkpoint.Manifest{})
	state(at("state/out-1234567"))
	const copied = "output_dir is a copy, or was moved from another file system"
	if with, without := firstIsTold(t, true), firstIsTold(t, false); !has(with, copied) || has(without, copied) {
		t.Errorf("of the first run it tells %q, and without a checkpoint of it %q", with, without)
	}
	begun(t, f, c, func(h *Home, _ Beginning) {
		if !has(f.notes, "save.fallback has checkpoints of another run with this name, such as "+
			at("fallback/out-1234567/checkpoints/step-000003")) || !has(f.notes, "memory.path has 8.0 KiB of state") {
			t.Errorf("notes are %q", f.notes)
		}
		if h.MemoryPath[0] != at("state") || h.Config.Memory.Path[0] != filepath.Join(at("state"), h.ID.Name) {
			t.Errorf("state is in %s, below %s", h.Config.Memory.Path, h.MemoryPath)
		}
		h.NoteState()
		if vfs.Exists(filepath.Join(h.Config.Memory.Path[0], StateOwnerName)) {
			t.Error("a directory without state is noted")
		}
		for _, dir := range []string{h.Config.Memory.Path[0], h.Config.Memory.Path[0] + HostStateInfix + "1"} {
			state(dir)
		}
		h.NoteState()
		if !vfs.Exists(filepath.Join(h.Config.Memory.Path[0], StateOwnerName)) || !f.OwnsStates(&h.ID, at("state")) {
			t.Error("the run's state is not its own")
		}
		h.ClearState()
		for name, want := range map[string]bool{h.ID.Name: false, h.ID.Name + HostStateInfix + "1": false,
			"out-1234567": true} {
			if vfs.Exists(at("state/"+name+"/part-1.extent")) != want {
				t.Errorf("state in %s is there: %v", name, !want)
			}
		}
		if len(f.warnings) > 0 {
			t.Errorf("warnings are %q", f.warnings)
		}
		h.NoteOwner("memory.path", filepath.Join(at("out"), IdentityName), "x")
		if !has(f.warnings, "memory.path: that ") {
			t.Errorf("warnings are %q", f.warnings)
		}
	})
}

// firstIsTold starts a copy of a run that has something in save.fallback, and returns what is told.
func firstIsTold(t *testing.T, has bool) []string {
	t.Helper()
	f, root, first := newTold(), t.TempDir(), checkpoint.NewRunID()
	c := configOf(t, filepath.Join(root, "out"), "save:\n  fallback: "+filepath.Join(root, "fallback")+"\n")
	at := filepath.Join(root, "fallback", "out-"+first.Short(), CheckpointsName)
	mkdir(t, at)
	if has {
		save(t, at, first, 5, checkpoint.Manifest{})
	}
	save(t, CheckpointsDir(c), first, 3, checkpoint.Manifest{})
	begun(t, f, c, func(*Home, Beginning) {})
	return f.notes
}

// A run that ends before it has begun leaves run.json as it was.
func TestUnclaim(t *testing.T) {
	f := newTold()
	c := configOf(t, filepath.Join(t.TempDir(), "out"), "")
	at := filepath.Join(c.OutputDir, IdentityName)
	for _, before := range []bool{false, true} {
		h := NewHome(f.Files, c)
		_, err := h.Hold()
		ok(t, err)
		was := ""
		if before {
			was = read(t, at)
		}
		h.ID.Ended = &Ending{Step: 7}
		ok(t, h.Claim())
		if now := read(t, at); now == was || !strings.Contains(now, `"step":7`) {
			t.Errorf("run.json has %s", now)
		}
		h.Unclaim()
		if vfs.Exists(at) != before || before && read(t, at) != was {
			t.Errorf("run.json is there: %v", vfs.Exists(at))
		}
		if !before {
			h.ID.Ended, h.ID.Begun = nil, true
			ok(t, h.Claim())
		}
		h.Close(true)
		c.Memory.Path = nil
	}
}

// A directory of a run stands for its latest weights: its model or its newest checkpoint, whichever is of a later step.
// A checkpoint stands for itself, and other names for no run.
func TestWeightsOf(t *testing.T) {
	f := newTold()
	c := configOf(t, filepath.Join(t.TempDir(), "out"), "")
	model := filepath.Join(c.OutputDir, LastModel)
	look := func(name string) (dir string, step int, err error) {
		dir, from, err := f.WeightsOf(t.Context(), name)
		step = -1
		if from != nil {
			step = from.Manifest.Step
		}
		return dir, step, err
	}
	expect := func(what, name, wantDir string, want int, wantErr string) {
		t.Helper()
		dir, step, err := look(name)
		if dir != wantDir || step != want || (err != nil) != (wantErr != "") ||
			err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: %q, step %d, %v", what, dir, step, err)
		}
	}
	expect("nothing", "", "", -1, "")
	expect("a missing directory", c.OutputDir, "", -1, "")
	var run checkpoint.RunID
	begun(t, f, c, func(h *Home, _ Beginning) {
		run = h.ID.Run
		expect("a run without weights", c.OutputDir, c.OutputDir, -1, "has neither a model nor a whole checkpoint yet")
	})
	four := save(t, CheckpointsDir(c), run, 4, checkpoint.Manifest{})
	expect("a checkpoint", four, c.OutputDir, 4, "")
	expect("checkpoints alone", c.OutputDir, c.OutputDir, 4, "")
	expect("the directory of checkpoints", CheckpointsDir(c), c.OutputDir, 4, "")
	writeModel(t, model, 1, 3)
	expect("an older model", c.OutputDir, c.OutputDir, 4, "")
	expect("the model", model, "", -1, "")
	for step, want := range map[int]int{4: -1, 5: -1, 2: 4} {
		writeModel(t, model, 1, step)
		expect("a model with a card", c.OutputDir, c.OutputDir, want, "")
	}
	ok(t, os.Remove(filepath.Join(model, "README.md")))
	for after, want := range map[time.Duration]int{time.Hour: -1, -time.Hour: 4} {
		manifest, err := os.Stat(filepath.Join(four, checkpoint.ManifestName))
		ok(t, err)
		ok(t, os.Chtimes(filepath.Join(model, "config.json"), time.Time{}, manifest.ModTime().Add(after)))
		expect("a model without a card", c.OutputDir, c.OutputDir, want, "")
	}
	begun(t, f, c, func(h *Home, _ Beginning) {
		h.ID.Results = []result{{Name: LastModel, Step: 9, WeightsSHA256: "x"}}
		ok(t, h.WriteIdentity())
	})
	expect("another model", c.OutputDir, c.OutputDir, -1, "is not the model that the run in")
	begun(t, f, c, func(h *Home, _ Beginning) {
		h.ID.Results = []result{{Name: LastModel, Step: 9, WeightsSHA256: sumOf(t, model)}}
		ok(t, h.WriteIdentity())
	})
	expect("a noted model", c.OutputDir, c.OutputDir, -1, "")
	begun(t, f, c, func(h *Home, _ Beginning) {
		h.ID.Leave(5)
		ok(t, h.WriteIdentity())
	})
	expect("a model of a step that was left", c.OutputDir, c.OutputDir, 4, "")
	ok(t, os.RemoveAll(model))
	ok(t, os.RemoveAll(four))
	mkdir(t, four)
	write(t, filepath.Join(four, checkpoint.ManifestName), "{")
	expect("a damaged checkpoint", c.OutputDir, c.OutputDir, -1, "has no model, and no whole checkpoint")
}

// A path of a run file reads as in the directory that the run was started in, where that is known and has the path.
func TestWhereRunStarted(t *testing.T) {
	root := t.TempDir()
	mkdir(t, filepath.Join(root, "data"))
	c := &runfile.Config{OutputDir: "runs/a"}
	dir := filepath.Join(root, "runs", "a")
	for path, want := range map[string]string{"": "", "auto": "auto", "data": filepath.Join(root, "data"),
		"/data": "/data"} {
		if got := WhereRunStarted(dir, c, path); got != want {
			t.Errorf("%q is %q, want %q", path, got, want)
		}
	}
	if got := WhereRunStarted(filepath.Join(root, "b"), c, "data"); got != "data" {
		t.Errorf("of a directory that was moved it is %q", got)
	}
}

// A path that a run file names is followed out of its directory if the run was started there.
func TestMayFollow(t *testing.T) {
	f := newTold()
	root := t.TempDir()
	c := configOf(t, filepath.Join(root, "out"), "")
	mkdir(t, c.OutputDir)
	inside, outside := filepath.Join(c.OutputDir, "tokenizer.json"), filepath.Join(root, "tokenizer.json")
	write(t, inside, "")
	write(t, outside, "")
	link(t, outside, filepath.Join(c.OutputDir, "link"))
	follow := func(path string, want bool) {
		t.Helper()
		if err := f.MayFollow(c.OutputDir, "tokenizer", path); (err == nil) != want || err != nil &&
			!strings.Contains(err.Error(), "tokenizer: "+path) {
			t.Errorf("%s is followed: %v", path, err)
		}
	}
	for path, want := range map[string]bool{"auto": true, inside: true, outside: false,
		filepath.Join(c.OutputDir, "link"): false} {
		follow(path, want)
	}
	begun(t, f, c, func(*Home, Beginning) {})
	follow(outside, true)
	ok(t, os.Rename(filepath.Join(c.OutputDir, IdentityName), filepath.Join(c.OutputDir, "x")))
	follow(outside, false)
}

// Output directories that cannot be are refused by what is wrong with them.
func TestDirectoriesThatCannotBeHeld(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("file"), "")
	link(t, at("gone"), at("dangling"))
	for name, want := range map[string]string{"file": "is a file, not a directory", "dangling": "is a link to "} {
		h := NewHome(newTold().Files, configOf(t, at(name), ""))
		if _, err := h.Hold(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		h.Close(false)
	}
	h := NewHome(newTold().Files, configOf(t, at("out"), "save:\n  fallback: "+at("file")+"\n"))
	if _, err := h.Hold(); err == nil || !strings.Contains(err.Error(), "save.fallback: there is no directory") {
		t.Errorf("a fallback that is a file: %v", err)
	}
	h.Close(false)
	if d, err := h.FallbackDir(); err == nil && d != nil {
		t.Error("a file is a directory of checkpoints")
	}
	mkdir(t, at("fallback"))
	withFallback := configOf(t, at("other"), "save:\n  fallback: "+at("fallback")+"\n")
	begun(t, newTold(), withFallback, func(h *Home, _ Beginning) {
		_, err := h.FallbackDir()
		ok(t, err)
		ok(t, os.Chmod(filepath.Dir(h.Fallback.Path()), 0o777))
	})
	h = NewHome(newTold().Files, withFallback)
	if _, err := h.Hold(); !isNotOwn(err, "save.fallback") {
		t.Errorf("a fallback that all may write to: %v", err)
	}
	h.Close(false)
	f := newTold().Files
	c := configOf(t, at("out"), "")
	half := []string{PlanName, TraceName, IdentityName, MetricsName, SamplesName, ResolvedName, OtherResolvedName}
	mkdir(t, c.OutputDir)
	for _, name := range half {
		write(t, filepath.Join(c.OutputDir, name+".tmp"), "")
	}
	for _, name := range []string{LastModel, BestModel} {
		mkdir(t, filepath.Join(c.OutputDir, "."+name+".tmp-0123456789abcdef"))
	}
	dir, err := f.holdRun(c)
	ok(t, err)
	defer dir.Close()
	entries, err := os.ReadDir(c.OutputDir)
	if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.Contains(e.Name(), "tmp") }) {
		t.Errorf("%v is left half-written, %v", entries, err)
	}
	if below.AnyLink() {
		t.Error("tests allow all links")
	}
	if _, err := f.holdRun(c); !errors.Is(err, vfs.ErrLocked) || !strings.HasPrefix(err.Error(), "output_dir: ") {
		t.Errorf("a directory that is held: %v", err)
	}
}

// The state of a run that has several drives is found, noted and removed on each of them.
func TestStateOnDrives(t *testing.T) {
	f := newTold()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	mkdir(t, at("a"))
	mkdir(t, at("b"))
	c := configOf(t, at("out"), "memory:\n  disk: auto\n  path: ["+at("a")+", "+at("b")+"]\n")
	mkdir(t, at("b/other-1234567"))
	write(t, at("b/other-1234567/part-1.extent"), strings.Repeat("x", 8192))
	begun(t, f, c, func(h *Home, _ Beginning) {
		if !has(f.notes, "memory.path has 8.0 KiB of state of other runs, in "+at("b/other-1234567")) ||
			!has(f.notes, "memory.path: 2 paths of the list are in one file system") {
			t.Errorf("notes are %q", f.notes)
		}
		dirs := []string{at("a/" + h.ID.Name), at("b/" + h.ID.Name), at("b/" + h.ID.Name + HostStateInfix + "1")}
		if fmt.Sprint(h.Config.Memory.Path) != fmt.Sprint(dirs[:2]) {
			t.Errorf("state is in %v, want %v", h.Config.Memory.Path, dirs[:2])
		}
		for _, dir := range dirs {
			mkdir(t, dir)
			write(t, filepath.Join(dir, "part-1.extent"), "x")
		}
		h.NoteState()
		for _, dir := range dirs[:2] {
			if !vfs.Exists(filepath.Join(dir, StateOwnerName)) {
				t.Errorf("%s is not noted as the run's", dir)
			}
		}
		write(t, filepath.Join(dirs[1], StateOwnerName), "{}")
		if f.ownsOutside(&h.ID, &runfile.Config{OutputDir: c.OutputDir, Memory: runfile.Memory{Path: h.MemoryPath}}) {
			t.Error("state of another run on the second drive is the run's")
		}
		h.ClearState()
		for _, dir := range dirs {
			if vfs.Exists(filepath.Join(dir, "part-1.extent")) {
				t.Errorf("%s has state that a kill has left", dir)
			}
		}
	})
}
