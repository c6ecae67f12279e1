package serve

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
)

// The documents of the page: docs/serve.md has their fields.

type runsDocument struct {
	Version  string        `json:"version"`
	Controls bool          `json:"controls"`
	Message  *string       `json:"message"`
	Runs     []runDocument `json:"runs"`
}

type runDocument struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Dir          string          `json:"dir"`
	Model        *string         `json:"model"`
	Data         []string        `json:"data"`
	Objective    *string         `json:"objective"`
	State        string          `json:"state"`
	FirstStep    int64           `json:"first_step"`
	LastStep     int64           `json:"last_step"`
	PlannedSteps *int64          `json:"planned_steps"`
	SecondsLeft  *float64        `json:"seconds_left"`
	Updated      *string         `json:"updated"`
	Summary      *report.Summary `json:"summary"`
	Columns      []string        `json:"columns"`
	EvalSets     []evalSet       `json:"eval_sets"`
	Controls     bool            `json:"controls"`
	Complete     bool            `json:"complete"`
	Revision     int64           `json:"revision"`
}

// evalSet is an evaluation set by its label.
type evalSet struct {
	Label   string   `json:"label"`
	Columns []string `json:"columns"`
}

// document describes the run. The caller holds mu.
func (r *run) document() runDocument {
	s, _ := r.settingsNow()
	p, _ := r.plannedNow()
	d := runDocument{ID: r.id, Name: r.name, Dir: r.name, Data: append([]string{}, s.data...), State: r.state,
		Controls: r.own != nil, Complete: r.records.atEnd || r.records.file == nil, Revision: r.revision,
		FirstStep: r.records.first, LastStep: r.records.last.Step}
	if s.flat != nil {
		d.Model, d.Objective = &s.model, &s.objective
	}
	if p.Wear != nil && p.Wear.Steps > 0 {
		d.PlannedSteps = &p.Wear.Steps
	}
	if !r.records.when.IsZero() {
		at := r.records.when.UTC().Format(time.RFC3339)
		d.Updated = &at
	}
	d.Columns, d.EvalSets = r.shown().columnNames()
	if d.Complete && r.records.totals.Steps() > 0 {
		if r.summedAt != r.revision {
			var rating *trace.Rating
			if p.Wear != nil && p.Wear.Bytes > 0 {
				rating = &p.Wear.Rating
			}
			r.summary, r.summedAt = r.records.totals.Summary(r.name, rating), r.revision
		}
		sum := r.summary
		d.Summary = &sum
		if d.PlannedSteps != nil && d.State == "running" {
			left := float64(max(0, *d.PlannedSteps-d.LastStep)) * sum.StepSec
			d.SecondsLeft = &left
		}
	}
	return d
}

// shown is the table that columns are answered from: a sample while not all is read.
func (r *run) shown() *table {
	if r.records.sample != nil {
		return r.records.sample
	}
	return r.records.table
}

// columnNames are the columns that have a value, and the evaluation sets by their labels.
func (t *table) columnNames() (names []string, sets []evalSet) {
	names, sets = []string{}, []evalSet{}
	for _, name := range t.names {
		if t.columns[name].count == 0 {
			continue
		}
		names = append(names, name)
		of, isOfSet := strings.CutPrefix(name, "eval/")
		label, _, hasNumber := strings.Cut(of, "/")
		if !isOfSet || !hasNumber {
			continue
		}
		i := slices.IndexFunc(sets, func(s evalSet) bool { return s.Label == label })
		if i < 0 {
			i = len(sets)
			sets = append(sets, evalSet{Label: label})
		}
		sets[i].Columns = append(sets[i].Columns, name)
	}
	return names, sets
}

// columns answers a request for columns of the run.
func (r *run) columns(a asked) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records.file != nil && !r.records.atEnd {
		if err := r.records.takeSample(); err != nil {
			return nil, err
		}
		return r.records.sample.answer(a, false), nil
	}
	return r.records.table.answer(a, true), nil
}

type tier struct {
	Name  string      `json:"name"`
	Parts []namedPart `json:"parts"`
}

type namedPart struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

type planDocument struct {
	HostBytes   *int64             `json:"host_bytes"`
	DeviceBytes *int64             `json:"device_bytes"`
	DiskBytes   *int64             `json:"disk_bytes"`
	Tiers       []tier             `json:"tiers"`
	StepSec     *float64           `json:"step_sec"`
	Lanes       map[string]float64 `json:"lanes"`
	Timeline    *timeline.Document `json:"timeline"`
}

// planDocument has the predictions for the run.
func (r *run) planDocument() planDocument {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, _ := r.plannedNow()
	d := planDocument{Tiers: []tier{}}
	if r.planned.info == nil {
		return d
	}
	d.HostBytes, d.DeviceBytes, d.DiskBytes = &p.HostBytes, &p.DeviceBytes, &p.DiskBytes
	for _, of := range []struct {
		name  string
		parts []part
	}{{"device", p.Device}, {"host", slices.Concat(p.State, p.Host)}, {"disk", p.Disk}} {
		t := tier{Name: of.name, Parts: []namedPart{}}
		for _, q := range of.parts {
			t.Parts = append(t.Parts, namedPart{q.Purpose, q.Bytes})
		}
		if len(t.Parts) > 0 {
			d.Tiers = append(d.Tiers, t)
		}
	}
	if p.Predicted.StepSec > 0 {
		d.StepSec, d.Lanes, d.Timeline = &p.Predicted.StepSec, p.Predicted.LaneSec, p.Timeline
	}
	return d
}

type timelineDocument struct {
	Predicted *timeline.Document `json:"predicted"`
	Measured  *timeline.Document `json:"measured"`
}

// mostSpans is the number of spans of a lane that a page can show.
const mostSpans = 2000

// timelineDocument has a step as it was predicted, and as the run's trace has it.
func (r *run) timelineDocument() timelineDocument {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, _ := r.plannedNow()
	measured, _ := r.measured.of(r.base, r.file(rundir.TraceName), func() (*timeline.Document, error) {
		f, err := below.Open(r.base, r.file(rundir.TraceName))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		t, err := trace.ReadChrome(f)
		if err != nil {
			return nil, err
		}
		step, err := timeline.Of(t, 0)
		if err != nil {
			return nil, err
		}
		return step.Document(mostSpans), nil
	})
	return timelineDocument{p.Timeline, measured}
}

func (r *run) settingsDocument() map[string]map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, _ := r.settingsNow()
	if s.flat == nil {
		s.flat = map[string]string{}
	}
	return map[string]map[string]string{"settings": s.flat}
}

type samplesDocument struct {
	Samples []sample `json:"samples"`
}

// sample is a line of samples.jsonl without its tokens.
type sample struct {
	Step   int64           `json:"step"`
	Number int             `json:"number"`
	Prompt json.RawMessage `json:"prompt"`
	Text   string          `json:"text"`
	Finish string          `json:"finish"`
}

// Bounds of samples that are shown: the newest ones.
const (
	mostSamples     = 500
	mostSampleBytes = 8 << 20 // of the file, from its end
)

// samplesDocument has the texts that the model wrote after later steps than one.
func (r *run) samplesDocument(after int64) (samplesDocument, error) {
	d := samplesDocument{[]sample{}}
	f, err := below.Open(r.base, r.file(rundir.SamplesName))
	if err != nil {
		return d, nil // the run has no samples
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return d, err
	}
	from := max(0, info.Size()-mostSampleBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, mostSampleBytes))
	if err != nil {
		return d, err
	}
	if from > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	for line := range bytes.Lines(text) {
		s := sample{Step: math.MinInt64}
		if budget.Unmarshal(line, &s) == nil && s.Step > after {
			d.Samples = append(d.Samples, s)
		}
	}
	d.Samples = d.Samples[max(0, len(d.Samples)-mostSamples):]
	return d, nil
}
