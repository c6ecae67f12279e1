package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
)

// Forecast says what a plan means for a whole run.
type Forecast struct {
	TokensPerSec float64 `json:"tokens_per_sec"` // packed positions
	Steps        int     `json:"steps,omitempty"`
	RunSeconds   float64 `json:"run_sec,omitempty"` // of the steps, without loading, evaluation and saving

	// PassSeconds is the time in which each text that the model writes during training grows by a token, up to Texts of
	// them together; 0 for a run without samples. That makes WrittenPerSec tokens in a second. TextPositions are those
	// that all texts together have caches for.
	PassSeconds   float64 `json:"pass_sec,omitempty"`
	Texts         int     `json:"texts,omitempty"`
	TextPositions int     `json:"text_positions,omitempty"`
	WrittenPerSec float64 `json:"written_tokens_per_sec,omitempty"`

	Eight *EightGPUs `json:"eight_gpus,omitempty"` // of GPUs only

	Limit    string   `json:"limit"` // what the busiest lane works on, with its share of the step
	Timeline []string `json:"timeline"`
	Stalls   []Stall  `json:"stalls,omitempty"` // of the compute lane
	// Assumed are the rates of the prediction that were not measured.
	Assumed []Assumed `json:"assumed_rates,omitempty"`

	// CheckpointBytes is the state in host memory that a checkpoint copies on this host, CheckpointDiskBytes the state on
	// disk that it copies since it is on another drive, as far as that is known, CheckpointLinks the files of state on
	// disk that it links, and CheckpointStallSeconds how long steps wait for all. That happens during a step, so steps
	// wait only for the time beyond it. A unified device computes on the cores that copy: there steps wait for all of it.
	// Where the disk's rate is not known, no stall is predicted.
	CheckpointBytes        int64    `json:"checkpoint_bytes"`
	CheckpointDiskBytes    int64    `json:"checkpoint_disk_bytes,omitempty"`
	CheckpointLinks        int64    `json:"checkpoint_links,omitempty"`
	CheckpointStallSeconds *float64 `json:"checkpoint_stall_sec,omitempty"`
}

// Forecast works out what a plan means for a run of steps; 0 if their number is not known.
func (p *Plan) Forecast(m Machine, dev device.Info, steps int) Forecast {
	q := p.Predicted
	o := Forecast{Steps: steps, RunSeconds: float64(steps) * q.StepSeconds, Eight: p.onEight(m, dev),
		Limit: p.limit(m), Timeline: p.Timeline(m, dev), Stalls: p.Stalls(m, dev), Assumed: p.Assumed(m)}
	if q := p.Texts(); q != nil {
		o.PassSeconds = q.PassSeconds(m, dev)
		o.Texts, o.TextPositions = q.Outputs.Caches.Sequences, q.Outputs.Caches.Rows()
		o.WrittenPerSec = float64(o.Texts) / o.PassSeconds
	}
	if q.StepSeconds > 0 {
		o.TokensPerSec = float64(p.Whole.StepPositions()) / q.StepSeconds
	}
	var onDisk int64
	o.CheckpointBytes, onDisk, o.CheckpointLinks = p.saved()
	if p.Wear != nil && onDisk > 0 {
		o.CheckpointDiskBytes = p.Wear.SaveBytes - o.CheckpointBytes
		o.CheckpointLinks = int64(float64(o.CheckpointLinks) * (1 - float64(o.CheckpointDiskBytes)/float64(onDisk)))
	}
	rate := m.SaveBytesPerSec
	if rate == 0 {
		rate = m.DiskWriteBytesPerSec
	}
	if rate > 0 {
		stall := float64(o.CheckpointBytes+o.CheckpointDiskBytes)/rate + float64(o.CheckpointLinks)*m.SaveLinkSeconds
		if !dev.Unified {
			stall = max(0, stall-q.StepSeconds)
		}
		o.CheckpointStallSeconds = &stall
	}
	return o
}

// limit says in words what a step waits for.
func (p *Plan) limit(m Machine) string {
	q := p.Predicted
	lanes := []Lane{LaneFetch, LaneCompute, LaneDrain, LaneUpdate, LaneDisk, LaneSend, LaneReceive}
	slices.SortStableFunc(lanes, func(a, b Lane) int { return cmp.Compare(q.LaneSeconds[b], q.LaneSeconds[a]) })
	first, second := lanes[0], lanes[1]
	rate := func(bytesPerSec float64) string { return fmt.Sprintf("%.3g GB/s", bytesPerSec/1e9) }
	diskRead, diskWrite := p.diskRates(&m)
	rates := map[Lane]string{
		LaneFetch:   rate(m.UploadBytesPerSec),
		LaneCompute: fmt.Sprintf("%.3g TFLOP/s", m.MatMulFLOPsPerSec(p.Numerics.Compute)/1e12),
		LaneDrain:   rate(m.DownloadBytesPerSec),
		LaneUpdate:  rate(m.updateBytesPerSec(p.Numerics.Scheme())),
		LaneSend:    rate(m.NetworkBytesPerSec),
		LaneReceive: rate(m.NetworkBytesPerSec),
		LaneDisk:    rate(diskRead) + " read and " + rate(diskWrite) + " written",
	}
	what := func(l Lane) string { return l.Limit() + ", " + rates[l] }
	if q.StepSeconds == 0 {
		return what(first)
	}
	say := func(l Lane) string {
		return fmt.Sprintf("%s (busy %.0f%% of the step)", what(l), 100*q.LaneSeconds[l]/q.StepSeconds)
	}
	if q.LaneSeconds[first] >= alone*q.StepSeconds || q.LaneSeconds[second] == 0 {
		return say(first)
	}
	return say(first) + ", then " + say(second) + ": each waits for the other"
}

// alone is the share of a step from which on a lane limits it by itself.
const alone = 0.9

// FormatSeconds is a time for people: "3.2 s", "5.1 h".
func FormatSeconds(sec float64) string {
	switch {
	case math.IsInf(sec, 0) || math.IsNaN(sec):
		return "forever"
	case sec >= 2*365.25*86400:
		return fmt.Sprintf("%.1f years", sec/(365.25*86400))
	case sec >= 2*86400:
		return fmt.Sprintf("%.1f days", sec/86400)
	case sec >= 2*3600:
		return fmt.Sprintf("%.1f h", sec/3600)
	case sec >= 2*60:
		return fmt.Sprintf("%.1f min", sec/60)
	}
	return fmt.Sprintf("%.3g s", sec)
}
