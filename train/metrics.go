package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/trace"
)

// openMetrics opens the run's file of metrics. One with a line that is no record, as a drive that fails may leave it, goes to another
// name, and a new one begins: it is not for its log that a run ends.
func (t *trainer) openMetrics() error {
	name := filepath.Join(t.config.OutputDir, metricsName)
	bad := (*trace.RecordError)(nil)
	err := t.readMetrics(name)
	if errors.As(err, &bad) {
		aside := name + ".damaged"
		for n := 2; exists(aside); n++ {
			aside = fmt.Sprintf("%s.damaged-%d", name, n)
		}
		if err = t.env.files().Rename(name, aside); err == nil {
			t.env.say("warning: %s: %v; the file is %s now, and a new one begins", name, bad, filepath.Base(aside))
			err = t.readMetrics(name)
		}
	}
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return nil
}

func (t *trainer) readMetrics(name string) error {
	f, err := t.env.files().OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	last := int64(t.begun)
	if last == 0 {
		last = -1 // a run that begins evaluates before it trains, and so writes the record of step 0 again
	}
	if t.metrics, err = trace.NewMetricsFile(f, last); err != nil {
		f.Close()
	}
	t.metricsFile = f
	return err
}

// checkMetrics says, once, that records cannot be written. They wait, and the run continues.
func (t *trainer) checkMetrics(err error) {
	if err != nil && !t.unwritten {
		t.env.say("warning: %s cannot be written: %s; its records wait until it can be", metricsName, console.OneLine(err))
	}
	t.unwritten = err != nil
}
