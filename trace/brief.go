package trace

import (
	"bytes"
	"io"
	"math"
	"strings"
)

// BriefReader reads of records the numbers by which a run is summed up, and those alone: ten times as fast as all of a
// [Metrics]. The zero value is ready.
type BriefReader struct {
	// Each gets all numbers of a record but its step, by the names that [Metrics.Columns] gives them; nil: nothing does. A
	// name is valid during the call.
	Each   func(name []byte, x float64)
	parser numbers
	m      Metrics
	step   float64
	seen   int  // of the numbers that are 0 to ReadMetrics where they are missing
	isOdd  bool // a field has a value of another type than Metrics has
}

// Read reads a line. The record is valid until the next call, and what its pointers and maps lead to stays. Of its
// fields it has Step, Loss, GradNorm, Tokens, TargetTokens, StepSec, ModelTFLOPS, DevicePeakBytes, HostPeakBytes,
// DiskWrittenBytes, WriteWaitSec, EvalLoss, Time and, of EvalSets, the losses. A number that is null or missing is NaN,
// or 0 where it is a count, or nil. ok is false for a line that is no record.
func (r *BriefReader) Read(line []byte) (m *Metrics, ok bool) {
	none := math.NaN()
	m = &r.m
	*m = Metrics{Loss: none, GradNorm: none, StepSec: none, ModelTFLOPS: none}
	r.step, r.seen, r.isOdd, r.parser.take = none, 0, false, r.take
	if r.parser.read(line) != nil || !(r.step >= 0 && r.step <= 1<<53) {
		return m, false
	}
	m.Step = int64(r.step)
	if r.parser.time != nil {
		at := string(r.parser.time)
		m.Time = &at
	}
	return m, true
}

// take takes a number of the record.
func (r *BriefReader) take(name []byte, x float64) {
	m := &r.m
	switch string(name) {
	case "step":
		r.step, r.isOdd = x, r.isOdd || x != math.Trunc(x)
		return
	case "loss":
		m.Loss, r.seen = x, r.seen+1
	case "grad_norm":
		m.GradNorm, r.seen = x, r.seen+1
	case "step_sec":
		m.StepSec, r.seen = x, r.seen+1
	case "model_tflops":
		m.ModelTFLOPS, r.seen = x, r.seen+1
	case "tokens":
		m.Tokens = r.count(x)
	case "target_tokens":
		m.TargetTokens = r.count(x)
	case "device_peak_bytes":
		m.DevicePeakBytes = r.count(x)
	case "host_peak_bytes":
		m.HostPeakBytes = r.count(x)
	case "disk_written_bytes":
		m.DiskWrittenBytes = r.count(x)
	case "write_wait_sec":
		m.WriteWaitSec = given(x)
	case "eval_loss":
		m.EvalLoss = given(x)
	case "lanes", "devices", "hosts", "experts", evalSetsName:
		r.isOdd = r.isOdd || !math.IsNaN(x)
	}
	if of, isOfSet := bytes.CutPrefix(name, []byte(evalSetsName+"/")); isOfSet {
		if label, isLoss := strings.CutSuffix(string(of), "/"+SetLoss); isLoss && !strings.Contains(label, "/") {
			if m.EvalSets == nil {
				m.EvalSets = map[string]Numbers{}
			}
			m.EvalSets[label] = Numbers{SetLoss: x}
		}
		if r.Each == nil {
			return
		}
		name = append([]byte(EvalSetPrefix), of...)
	}
	if r.Each != nil {
		r.Each(name, x)
	}
}

// given is a number that a record may have; nil for null.
func given(x float64) *float64 {
	if math.IsNaN(x) {
		return nil
	}
	return &x
}

// count is a count that a record has.
func (r *BriefReader) count(x float64) int64 {
	if !(math.Abs(x) < 1<<62) {
		return 0
	}
	r.isOdd = r.isOdd || x != math.Trunc(x)
	return int64(x)
}

// ReadBrief is [ReadMetrics] with records that have only what [BriefReader] reads.
func ReadBrief(from io.Reader) (all []Metrics, err error) {
	var r BriefReader
	brief := metricsRecords
	brief.Parse = func(line []byte) (Metrics, int64, bool) {
		m, ok := r.Read(line)
		if !ok || r.seen != 4 || r.isOdd || r.parser.isOdd {
			return metricsRecords.Parse(line) // it knows each type
		}
		return *m, m.Step, true
	}
	err = scan(from, brief, func(m Metrics, _, _ int64) bool { all = append(all, m); return true })
	return all, err
}
