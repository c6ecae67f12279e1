package train

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
)

// records are the files that a run writes a line to when something happens: metrics.jsonl hears of steps and
// evaluations, samples.jsonl of samples.
type records struct {
	metrics rundir.RecordFile[trace.Metrics]
	samples rundir.RecordFile[Sample]
	env     *session.Env
}

func newRecords(env *session.Env, h *rundir.Home) records {
	return records{rundir.NewRecordFile(env.Runs(), h.File(rundir.MetricsName), trace.NewMetricsFile),
		rundir.NewRecordFile(env.Runs(), h.File(rundir.SamplesName), newSamplesFile), env}
}

// hear writes the record of an event that has one.
func (r *records) hear(event session.Event) {
	switch e := event.(type) {
	case StepDone:
		r.metrics.Append(e.Metrics)
	case Evaluated:
		switch {
		case e.Step == 0:
			r.metrics.Append(trace.BeforeTraining(e.Evaluation, time.Now().UTC().Format(time.RFC3339)))
		case e.Late:
			r.metrics.Amend(int64(e.Step), func(m *trace.Metrics) { m.SetEval(e.Evaluation) })
		}
	case Sampled:
		r.samples.Append(e.Sample)
	}
}

// sync makes sure that the records so far are on the drive, as far as they can be.
func (r *records) sync() {
	r.metrics.Sync()
	r.samples.Sync()
}

// end is the error of records of steps that could not be written to the end. Without samples a run is as good.
func (r *records) end() (waiting int, err error) {
	if n, err := r.samples.End(); err != nil {
		r.env.Warn("the last %d records of %s are not written: %s", n, rundir.SamplesName, console.OneLine(err))
	}
	return r.metrics.End()
}

// remake gives the files their names again.
func (r *records) remake() error { return cmp.Or(r.metrics.Remake(), r.samples.Remake()) }

func (r *records) close() { r.metrics.Close(); r.samples.Close() }
