package checkpoint

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/vfs"
)

// saveAs saves the norm alone, as a run.
func saveAs(t *testing.T, r *run, o Owner, step, unhealthy int) {
	t.Helper()
	must(t, r.Own(o))
	w, err := r.Create(step, []Spec{norm})
	must(t, err)
	must(t, w.Add(norm.ID, 0, contents(norm, step)))
	_, err = w.Commit(Manifest{UnhealthySteps: unhealthy})
	must(t, err)
}

// A directory with checkpoints of three runs, of which one was copied from another; some of unhealthy steps, one that is
// not complete.
func TestFind(t *testing.T) {
	other := Owner{Run: "ffeeddccbbaa99887766554433221100"}
	copied := Owner{Run: "0123456789abcdef0123456789abcdef", Earlier: []RunID{ours.Run}}
	m := vfs.NewMem()
	r := start(t, m, root)
	saveAs(t, r, ours, 1, 0)
	saveAs(t, r, other, 2, 0)
	saveAs(t, r, other, 3, 0)
	saveAs(t, r, ours, 4, 0)
	saveAs(t, r, copied, 5, 1)
	saveAs(t, r, copied, 6, 2)
	saveAs(t, r, copied, 7, 0)
	must(t, m.Remove(filepath.Join(root, "step-000007", "norm.weights")))

	for what, c := range map[string]struct {
		q      Query
		step   int
		broken []int
	}{
		"any":              {Query{}, 6, []int{7}},
		"below 7":          {Query{Below: 7}, 6, nil},
		"below 1":          {Query{Below: 1}, 0, nil},
		"healthy":          {Query{Healthy: true}, 4, []int{7}},
		"of the other":     {Query{Owner: &other}, 3, nil},
		"of the copy":      {Query{Owner: &copied}, 6, []int{7}},
		"healthy, copied":  {Query{Owner: &copied, Healthy: true}, 4, []int{7}},
		"of the first":     {Query{Owner: &ours}, 4, nil},
		"before the third": {Query{Owner: &other, Below: 3}, 2, nil},
		"of no run":        {Query{Owner: &Owner{Run: NewRunID()}}, 0, nil},
	} {
		got, broken, err := Find(m, root, c.q)
		must(t, err)
		step, others := 0, []int(nil)
		if got != nil {
			step = got.Manifest.Step
		}
		for _, e := range broken {
			others = append(others, e.Step)
		}
		if step != c.step || !slices.Equal(others, c.broken) {
			t.Errorf("%s: step %d, broken %v; want %d, %v", what, step, others, c.step, c.broken)
		}
	}

	for what, c := range map[string]struct {
		o    Owner
		want []int
	}{"copy": {copied, []int{7, 6, 5, 4, 1}}, "other": {other, []int{3, 2}}, "ours": {ours, []int{4, 1}}} {
		if got, err := Steps(m, root, c.o); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("steps of %s: %v, error %v", what, got, err)
		}
	}

	newest, others, err := Runs(m, root)
	if err != nil || !slices.Equal(newest, []RunID{copied.Run, ours.Run}) || !slices.Equal(others, []RunID{other.Run}) {
		t.Errorf("runs %v and %v, error %v", newest, others, err)
	}

	// Damage names the newest checkpoint before it that is the run's.
	for o, want := range map[*Owner]string{&other: "/step-000002", &ours: "/step-000001"} {
		c, _, err := Find(m, root, Query{Owner: o})
		must(t, err)
		must(t, m.FlipBit(filepath.Join(c.Dir(), "norm.weights"), 0, 0))
		if err := c.ReadPiece(norm.ID, 0, make([]byte, 16)); err == nil || !strings.HasSuffix(err.Error(), ", "+root+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// A directory that cannot be listed is an error, and not one without checkpoints.
func TestListFails(t *testing.T) {
	m := vfs.NewMem()
	start(t, m, root, 1)
	m.Intercept(failing(vfs.OpReadDir, root))
	_, errList := List(m, root)
	_, errSteps := Steps(m, root, ours)
	_, _, errRuns := Runs(m, root)
	_, errIsOf := IsOf(m, root, ours)
	for what, err := range map[string]error{"List": errList, "Steps": errSteps, "Runs": errRuns, "IsOf": errIsOf} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	m.Intercept(nil)
	if _, err := List(m, root+"/step-000001/norm.weights"); err == nil || !strings.Contains(err.Error(), "is a file, not a directory") {
		t.Errorf("error %v", err)
	}
}
