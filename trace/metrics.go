package trace

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Metrics is one step, and one line of metrics.jsonl. A number that is not finite is null in the file.
type Metrics struct {
	Step         int64   `json:"step"`          // 1 for the first one; 0: see BeforeTraining
	Loss         float64 `json:"loss"`          // nats per target token, over the global batch
	GradNorm     float64 `json:"grad_norm"`     // before clipping
	ClipScale    float64 `json:"clip_scale"`    // what gradients were multiplied by; 1 where nothing was clipped
	LearningRate float64 `json:"learning_rate"` // of this step
	Tokens       int64   `json:"tokens"`        // real positions, padding not counted
	TargetTokens int64   `json:"target_tokens"` // those that count in the loss
	TokensPerSec float64 `json:"tokens_per_sec"`
	StepSec      float64 `json:"step_sec"` // norm to norm
	ModelTFLOPS  float64 `json:"model_tflops"`

	DevicePeakBytes  int64 `json:"device_peak_bytes"`
	HostPeakBytes    int64 `json:"host_peak_bytes"`
	DiskReadBytes    int64 `json:"disk_read_bytes"`
	DiskWrittenBytes int64 `json:"disk_written_bytes"` // by the disk tier and by checkpoints

	WriteWaitSec *float64 `json:"write_wait_sec,omitempty"` // of the pause after the step, where writing is limited

	Lanes Lanes `json:"lanes"` // busy seconds; with several devices, of the device whose lane is busiest

	Devices []DeviceSeconds `json:"devices,omitempty"` // busy seconds by device, where there are several

	Hosts *Hosts `json:"hosts,omitempty"` // where there are several; what is above of a process is of host 0

	AuxLoss *float64 `json:"aux_loss,omitempty"` // the load-balancing loss without its weight; Loss is without it

	Experts *Experts `json:"experts,omitempty"` // of a model that has experts

	// MaxUpdateOverLR is the greatest change of a weight in the update of the step before, without its decay, over its
	// learning rate. Nil where this process made no such update, or none that moved a weight.
	MaxUpdateOverLR *float64 `json:"max_update_over_lr,omitempty"`

	Time *string `json:"time,omitempty"` // when the step ended: RFC 3339, UTC; older files lack it

	EvalLoss *float64 `json:"eval_loss,omitempty"` // where there was an evaluation: over all sets

	// EvalSets are the numbers of each evaluation set by its label: loss, and those of the objective by their names. Nil
	// where the run has one set without a label.
	EvalSets map[string]Numbers `json:"eval_sets,omitempty"`

	Pairs *int64 `json:"pairs,omitempty"` // documents or pairs of the step that an objective compares

	// Objective has the numbers of the run's objective by their names, such as rewards/margins, or of the next token:
	// entropy and mean_token_accuracy; those of an evaluation with EvalPrefix before them; and those of a layer with
	// LayersPrefix. In the file each is a key of the record.
	Objective map[string]float64 `json:"-"`
}

// EvalPrefix is before the names of an objective's numbers that are of an evaluation.
const EvalPrefix = "eval_"

// LayersPrefix is before the names of numbers that are of one layer.
const LayersPrefix = "layers/"

// EvalSetPrefix is before the names of columns that are of an evaluation set: see [Metrics.Columns].
const EvalSetPrefix = "eval/"

// evalSetsName is the key of EvalSets.
const evalSetsName = "eval_sets"

// Evaluation has the numbers of an evaluation.
type Evaluation struct {
	Loss      float64            // nats per target token, or of the objective, over all sets
	Objective map[string]float64 // the other numbers, by their names
	Sets      map[string]Numbers // as EvalSets of a record
}

// SetEval gives a record the numbers of an evaluation.
func (m *Metrics) SetEval(e Evaluation) {
	m.EvalLoss, m.EvalSets = &e.Loss, e.Sets
	for name, x := range e.Objective {
		if m.Objective == nil {
			m.Objective = map[string]float64{}
		}
		m.Objective[EvalPrefix+name] = x
	}
}

// Numbers are numbers by their names. In JSON those that are not finite are null.
type Numbers map[string]float64

// SetLoss is the name of the loss among the numbers of an evaluation set.
const SetLoss = "loss"

// MarshalJSON writes the numbers by their names.
func (n Numbers) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for _, name := range slices.Sorted(maps.Keys(n)) {
		if err := writeField(&b, name, reflect.ValueOf(n[name])); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads null as NaN, and leaves out what is no number.
func (n *Numbers) UnmarshalJSON(text []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	*n = make(Numbers, len(values))
	for name, value := range values {
		if x, ok := numberIn(value); ok {
			(*n)[name] = x
		}
	}
	return nil
}

// numberIn reads a number, or null as NaN.
func numberIn(value json.RawMessage) (x float64, ok bool) {
	if string(value) == "null" {
		return math.NaN(), true
	}
	return x, json.Unmarshal(value, &x) == nil
}

// Hosts have what a step was on each host of a run, by host.
type Hosts struct {
	StepSec []float64 `json:"step_sec"` // without what it waited for others at the end
	Slowest string    `json:"slowest"`  // the host that took longest, by its rank and the name of its machine

	Lanes            []Lanes `json:"lanes"`
	PeakBytes        []int64 `json:"host_peak_bytes"`
	DiskReadBytes    []int64 `json:"disk_read_bytes"`
	DiskWrittenBytes []int64 `json:"disk_written_bytes"`
}

// BeforeTraining is the record of step 0: the evaluation of the model that a run starts from. What only a step has is
// not a number in it, and counts are 0.
func BeforeTraining(e Evaluation, ended string) Metrics {
	none := math.NaN()
	m := Metrics{Loss: none, GradNorm: none, ClipScale: none, LearningRate: none, TokensPerSec: none, StepSec: none,
		ModelTFLOPS: none, Time: &ended}
	m.SetEval(e)
	return m
}

// MarshalJSON writes the fields in the order of the type, and then the numbers of an objective by their names.
// encoding/json alone refuses NaN and infinities, which are just what a run that goes wrong has to report.
func (m Metrics) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	v := reflect.ValueOf(m)
	for i := range v.NumField() {
		field := v.Field(i)
		name, isOptional := strings.CutSuffix(v.Type().Field(i).Tag.Get("json"), ",omitempty")
		if isOptional && field.IsNil() || name == "-" {
			continue
		}
		if err := writeField(&b, name, reflect.Indirect(field)); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Objective)) {
		if err := writeField(&b, name, reflect.ValueOf(m.Objective[name])); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// writeField writes a key and its value into an object.
func writeField(b *bytes.Buffer, name string, value reflect.Value) error {
	if b.Len() > 1 {
		b.WriteByte(',')
	}
	key, err := json.Marshal(name)
	if err != nil {
		return err
	}
	text := []byte("null")
	if value.Kind() != reflect.Float64 || isFinite(value.Float()) {
		if text, err = json.Marshal(value.Interface()); err != nil {
			return err
		}
	}
	b.Write(key)
	b.WriteByte(':')
	b.Write(text)
	return nil
}

// UnmarshalJSON reads null as NaN. Numbers under other names are an objective's, and other fields that it does not know
// are ignored, so that newer files can be read.
func (m *Metrics) UnmarshalJSON(text []byte) error {
	type plain Metrics // without methods, or this would call itself
	p := plain(*m)
	var nulls map[string]json.RawMessage
	if err := json.Unmarshal(text, &nulls); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	*m = Metrics(p)
	m.Objective = nil
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if string(nulls[name]) == "null" && f.Type.Kind() == reflect.Float64 {
			v.Field(i).SetFloat(math.NaN())
		}
		delete(nulls, name)
	}
	for name, value := range nulls {
		number, ok := numberIn(value)
		if !ok {
			continue
		}
		if m.Objective == nil {
			m.Objective = map[string]float64{}
		}
		m.Objective[name] = number
	}
	return nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Median is the middle of sorted numbers.
func Median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
