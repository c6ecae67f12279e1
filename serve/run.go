package serve

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

// Control is a run of this process, of which a user may ask something. An error is one line: the run cannot do that.
type Control interface {
	Save() error
	Stop() error
	EvaluateEvery(steps int) error
}

// run is an output directory that is served. Its fields below mu change as its files do.
type run struct {
	id   string
	name string // for people
	base string // directory that the user has named
	rel  string // of the run in it
	own  Control

	mu       sync.Mutex
	records  records
	fault    string // of the latest look at its records
	revision int64
	state    string
	settings cached[settings]
	planned  cached[planned]
	ended    cached[bool]
	measured cached[*timeline.Document]
	summary  report.Summary
	summedAt int64 // revision of the summary
}

// settings has what the page shows of a run's resolved run file.
type settings struct {
	flat      map[string]string
	model     string
	data      []string
	objective string
}

// planned has what the page shows of plan.json.
type planned struct {
	HostBytes   int64              `json:"host_bytes"`
	DeviceBytes int64              `json:"device_bytes"`
	DiskBytes   int64              `json:"disk_bytes"`
	Host        []part             `json:"host"`
	State       []part             `json:"state"`
	Device      []part             `json:"device"`
	Disk        []part             `json:"disk"`
	Timeline    *timeline.Document `json:"timeline"`
	Predicted   struct {
		StepSec float64            `json:"step_sec"`
		LaneSec map[string]float64 `json:"lane_sec"`
	} `json:"predicted"`
	Wear *struct {
		Steps int64 `json:"steps"`
		trace.Rating
	} `json:"wear"`
}

type part struct {
	Purpose string `json:"purpose"`
	Bytes   int64  `json:"bytes"`
}

// Bounds of what is read whole.
const (
	maxPlanBytes     = 16 << 20
	maxIdentityBytes = 1 << 20
)

// cached is made from a file, again when that has changed.
type cached[T any] struct {
	info  os.FileInfo // nil: there is no such file
	value T
}

// of is the value, and whether it may have changed.
func (c *cached[T]) of(dir, name string, read func() (T, error)) (T, bool) {
	info, err := below.Stat(dir, name)
	if err != nil {
		isNew := c.info != nil
		*c = cached[T]{}
		return c.value, isNew
	}
	if c.info != nil && isUnchanged(c.info, info) {
		return c.value, false
	}
	value, err := read()
	if err != nil { // a file that cannot be read is as none
		value = *new(T)
	}
	c.info, c.value = info, value
	return value, true
}

// isUnchanged reports whether a file is as it was looked at before.
func isUnchanged(before, now os.FileInfo) bool {
	return before.Size() == now.Size() && before.ModTime().Equal(now.ModTime()) && os.SameFile(before, now)
}

// file is the name of a file of the run below its base.
func (r *run) file(name string) string { return filepath.Join(r.rel, name) }

// documentIn reads a JSON file of the run.
func documentIn[T any](r *run, name string, maxBytes int64) func() (T, error) {
	return func() (v T, err error) {
		doc, err := below.Read(r.base, r.file(name), maxBytes)
		if err == nil {
			err = budget.Unmarshal(doc, &v)
		}
		return v, err
	}
}

func (r *run) settingsNow() (settings, bool) {
	name := rundir.ResolvedName
	if _, err := below.Stat(r.base, r.file(rundir.OtherResolvedName)); err == nil {
		name = rundir.OtherResolvedName
	}
	return r.settings.of(r.base, r.file(name), func() (settings, error) {
		doc, err := below.Read(r.base, r.file(name), runfile.MaxBytes)
		if err != nil || !bytes.HasPrefix(doc, []byte(runfile.ResolvedHeader)) {
			return settings{}, err
		}
		return settingsOf(doc)
	})
}

// settingsOf reads a run file that a run has written, also of another version.
func settingsOf(doc []byte) (settings, error) {
	values, err := runfile.Flat(doc)
	s := settings{flat: map[string]string{}}
	for _, v := range values {
		s.flat[v.Key] = v.Text
		if strings.HasPrefix(v.Key, "datasets[") && strings.HasSuffix(v.Key, "].path") {
			s.data = append(s.data, filepath.Base(v.Text))
		}
	}
	s.model, s.objective = filepath.Base(s.flat["model"]), cmp.Or(s.flat["objective.type"], runfile.NextToken)
	return s, err
}

func (r *run) plannedNow() (planned, bool) {
	return r.planned.of(r.base, r.file(rundir.PlanName), documentIn[planned](r, rundir.PlanName, maxPlanBytes))
}

// hasEnded reports whether run.json says that the run has come to its end.
func (r *run) hasEnded() (ended, isNew bool) {
	return r.ended.of(r.base, r.file(rundir.IdentityName), func() (bool, error) {
		type sealed struct {
			Identity struct {
				Ended *struct{} `json:"ended"`
			} `json:"identity"`
		}
		id, err := documentIn[sealed](r, rundir.IdentityName, maxIdentityBytes)()
		return id.Identity.Ended != nil, err
	})
}

// look finds out what of the run has changed, and reads the ends of its records, or all of few. With all it looks at
// its other files, too, which change rarely.
func (r *run) look(now time.Time, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew, err := r.records.look()
	if err == nil && isNew && r.records.file != nil {
		switch left := r.records.file.Size() - r.records.offset; {
		case left <= atOnceBytes:
			err = r.records.read(2 * atOnceBytes)
		case r.records.offset == 0:
			err = r.records.readEnds()
		}
	}
	r.note(err)
	if all || isNew {
		_, newSettings := r.settingsNow()
		_, newPlan := r.plannedNow()
		_, newEnd := r.hasEnded()
		isNew = isNew || newSettings || newPlan || newEnd
	}
	before := r.state
	if r.state = r.stateAt(now); isNew || r.state != before {
		r.revision++
	}
}

// note keeps the error of a look at the records, for the list of runs.
func (r *run) note(err error) {
	text := ""
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		text = r.name + ": " + terminal.Text(console.OneLine(err))
	}
	if text != r.fault {
		r.fault = text
		r.revision++
	}
}

// leftOut says how many lines of its file are no records.
func (r *run) leftOut() string {
	return fmt.Sprintf("%s: %s of its records cannot be read, and are left out", r.name,
		spelling.Count(r.records.damaged, "line"))
}

// follow reads more of the records, if not all are read. It reports whether there is more.
func (r *run) follow() (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records.file == nil || r.records.file.Size() <= r.records.offset && r.records.atEnd {
		return false
	}
	before := r.records.offset
	err := r.records.read(chunkBytes)
	r.note(err)
	if r.records.offset != before {
		r.revision++
	}
	return err == nil && r.records.offset != before
}

// A run of another process counts as running while its newest record is not older than silence, or than silenceSteps of
// its steps: it may be in an evaluation.
const (
	silence      = 2 * time.Minute
	silenceSteps = 10
)

func (r *run) stateAt(now time.Time) string {
	stepSec := r.records.last.StepSec
	if !(stepSec > 0 && stepSec < 1e6) {
		stepSec = 0
	}
	allowed := max(silence, time.Duration(silenceSteps*stepSec*float64(time.Second)))
	switch {
	case r.own != nil:
		return "running"
	case r.ended.value:
		return "ended"
	case !r.records.when.IsZero() && now.Sub(r.records.when) < allowed:
		return "running"
	}
	return "stopped"
}
