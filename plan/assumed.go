package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
)

// Assumed is a rate that a prediction needs and that was not measured on the machine.
type Assumed struct {
	Operation   string  `json:"operation"`               // for people, with its form
	TakenAs     string  `json:"taken_as"`                // what stands for the rate, for people
	FLOPsPerSec float64 `json:"flops_per_sec,omitempty"` // one of the two
	BytesPerSec float64 `json:"bytes_per_sec,omitempty"`
}

// Assumed lists the rates that the plan's prediction needs and that were not measured on the machine, in the order of
// classes.
func (p *Plan) Assumed(m Machine) (list []Assumed) {
	add := func(o Operation) {
		rate, taken := o.On(&m)
		a := Assumed{Operation: o.text(), TakenAs: taken}
		if o.Class.IsFLOPs() {
			a.FLOPsPerSec = rate
		} else {
			a.BytesPerSec = rate
		}
		if taken != "" && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	accounts := p.distinctAccounts()
	for class := range nn.Class(nn.Classes) {
		for i := range accounts {
			if accounts[i].Work[class] > 0 {
				add(p.operationOf(class, &accounts[i]))
			}
		}
	}
	if p.Numerics.Master == optim.Split24 && p.Trains() {
		as := fmt.Sprintf("%v times that of updates with moments in 8 bits, as a core of a Xeon had, and no more than that "+
			"of other updates", master24Times)
		if p.Numerics.Moments != optim.MomentsF32 {
			as = fmt.Sprintf("%v of that of updates of other masters, as a core of a Xeon had", master24Share)
		}
		list = append(list, Assumed{Operation: "updates on the host with masters of 24 bits", TakenAs: as,
			BytesPerSec: m.updateBytesPerSec(p.Numerics.Scheme())})
	}
	if !p.Numerics.Moments.Coded() || !p.Trains() {
		return list
	}
	if p.anyUpdatedOnDevice() {
		add(Operation{Class: nn.OfUpdates8, Compute: p.Numerics.Compute, Unified: p.Unified})
	}
	if m.AdamW8BytesPerSec == 0 {
		list = append(list, Assumed{Operation: "updates on the host with moments in 8 bits",
			TakenAs:     fmt.Sprintf("%v of that of other updates, as the host of an H100 was measured to have", updates8Share),
			BytesPerSec: m.UpdateBytesPerSec(optim.Dynamic8)})
	}
	if moments := p.Numerics.Moments; moments.IsExperiment() {
		list = append(list, Assumed{Operation: fmt.Sprintf("updates on the host with moments of %v", moments),
			TakenAs: fmt.Sprintf("%v of the parameters a second with moments in 8 bits, as a core of a Xeon had",
				updates4Share),
			BytesPerSec: m.UpdateBytesPerSec(moments)})
	}
	return list
}

// distinctAccounts lists the accounts of the visits of a step, of blocks that differ, and of the head.
func (p *Plan) distinctAccounts() (all []nn.Account) {
	ways := []nn.Direction{nn.Forward}
	switch {
	case p.Trains():
		ways = append(ways, nn.Backward)
	case p.Outputs.Continues():
		ways = []nn.Direction{nn.Continue}
	}
	for layer := 1; layer <= p.blocks()+1; layer++ {
		if layer <= p.blocks() && p.Model.Like[layer-1] != layer-1 {
			continue
		}
		for _, to := range ways {
			for _, stage := range p.stages(layer, to) {
				for i := range stage {
					all = append(all, p.account(layer, &stage[i]))
				}
			}
		}
	}
	return all
}

// text names an operation with its form.
func (o Operation) text() string {
	text := o.Class.String()
	if o.HeadDim > 0 {
		text += fmt.Sprintf(" of heads of %d", o.HeadDim)
	}
	if o.Class != nn.OfUpdates8 {
		text += " in " + o.Compute.String()
	}
	return text
}

// assumedText is a list of rates for people, a line for each.
func assumedText(list []Assumed) string {
	var b strings.Builder
	for _, a := range list {
		rate := fmt.Sprintf("%s GB/s", three(a.BytesPerSec/1e9))
		if a.FLOPsPerSec > 0 {
			rate = fmt.Sprintf("%s TFLOP/s", three(a.FLOPsPerSec/1e12))
		}
		fmt.Fprintf(&b, "  a guess: the rate of %s was not measured, and is taken as %s: %s\n", a.Operation, a.TakenAs, rate)
	}
	return b.String()
}
