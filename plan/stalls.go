package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
)

// Stall is a time in which the compute lane has nothing to do.
type Stall struct {
	Before  string  `json:"before"` // the operation that comes next, such as "forward"; "norm" after the last one
	For     string  `json:"for"`    // the operation, of whichever lane, that is under way and has to be done first
	Seconds float64 `json:"sec"`
}

// Stalls are the times of a simulated step in which the compute lane waits, by what comes next and by what it waits
// for in the end: not the fetch that has not begun but the update that the fetch waits for. Longest first. Those of
// several devices are averages.
func (p *Plan) Stalls(m Machine, dev device.Info) []Stall {
	of := map[[2]string]float64{}
	p.walk(m, dev, walking{micros: simulatedMicros, stalled: func(next, culprit *Op, seconds float64) {
		before := stepEnd
		if next != nil {
			before = next.Name()
		}
		of[[2]string{before, culprit.Name()}] += seconds / float64(p.Ranks())
	}})
	var all []Stall
	for names, seconds := range of {
		all = append(all, Stall{names[0], names[1], seconds})
	}
	slices.SortFunc(all, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Before, b.Before), strings.Compare(a.For, b.For))
	})
	return all
}

// stepEnd is the Before of a Stall after the last operation.
const stepEnd = "norm"

// waitedFor says for people what an operation brings, by its name, where the name does not say it.
var waitedFor = map[string]string{"update": "updates", "fetch": "weights",
	"gather": "the embedding", "gather-ahead": "the embedding",
	"scatter": "the embedding's gradient", "load": "layer inputs", "save": "layer inputs to leave",
	"load-sums": "sums of experts", "save-sums": "sums of experts to leave",
	"load-kept": "kept activations", "save-kept": "kept activations to leave", "drain": "gradients to leave",
	"drain-sum": "gradients to leave", "drain-input": "the embedding's gradient", "load-input": "a gradient from above",
	"pass": "rows of another device", "pass-input": "a gradient of another device",
	"load-head": "rows of the head", "load-head-grad": "rows of the head", "pass-head": "rows of the head",
	"pass-head-grad": "rows of the head", "save-head": "rows of the head to leave",
	"save-head-grad": "rows of the head to leave",
	"load-side":      "values of layers before", "save-side": "values for later layers to leave",
	"load-side-grad": "a gradient from later layers", "drain-side": "a gradient of values that cross layers",
	"pass-side": "values of layers before", "pass-side-grad": "a gradient from later layers",
	"load-balance": "how often all experts were chosen", "save-balance": "counts of experts to leave",
	"send-balance": "counts of experts to be sent", "receive-balance": "counts of experts of other hosts",
	"collect": "the norm", "send-sum": "gradients to be sent", "receive-sum": "gradients of other hosts",
	"total": "gradients of hosts to be added", "send-weights": "weights to be sent",
	"receive-weights": "weights of other hosts"}

// stallText says where a step's compute lane waits, as long as it is worth a word.
func stallText(all []Stall, stepSeconds float64) string {
	const worth = 0.001
	sum := 0.0
	var say []string
	for _, i := range all {
		sum += i.Seconds
		if i.Seconds >= worth*stepSeconds {
			before := "before " + i.Before
			if i.Before == stepEnd {
				before = "at the end"
			}
			say = append(say, fmt.Sprintf("%s s %s for %s", three(i.Seconds), before, cmp.Or(waitedFor[i.For], i.For)))
		}
	}
	if len(say) == 0 {
		return "compute never waits"
	}
	return fmt.Sprintf("compute waits %.1f%% of the step: %s", 100*sum/stepSeconds, strings.Join(say, ", "))
}
