package trace

import (
	"encoding/json"
	"strconv"
)

// Lane is an ordered worker that overlaps with the others.
type Lane uint8

// The lanes, in the order of the tracks.
const (
	Fetch    Lane = iota // weights to the device
	Compute              // operations on the device
	Drain                // gradients and saved inputs from the device
	Update               // the optimizer
	Disk                 // reads and writes of files
	Exchange             // rows of layers from another device
	Send                 // sums of gradients, and weights, to other hosts
	Receive              // and from them
	NumLanes
)

// lanes holds all that people read of each lane.
var lanes = [NumLanes]struct {
	name, work, limit string
	optional          bool
}{
	Fetch:    {"fetch", "host to device", "the link to the device", false},
	Compute:  {"compute", "runs the layers", "the device's arithmetic", false},
	Drain:    {"drain", "device to host", "the link from the device", false},
	Update:   {"update", "AdamW on the host", "the host's memory", false},
	Disk:     {"disk", "reads and writes", "the disk", false},
	Exchange: {"exchange", "rows of other devices", "the link between devices", true},
	Send:     {"send", "to other hosts", "the network to other hosts", true},
	Receive:  {"receive", "from other hosts", "the network from other hosts", true},
}

// String is the lane's name in traces and metrics.
func (l Lane) String() string { return lanes[l].name }

// Work says in a few words what the lane does: "host to device".
func (l Lane) Work() string { return lanes[l].work }

// Limit names what the lane waits for: "the link to the device".
func (l Lane) Limit() string { return lanes[l].limit }

// IsOptional reports whether only some runs have the lane: those with several devices, or with several hosts.
func (l Lane) IsOptional() bool { return lanes[l].optional }

// Lanes has a number for each lane, such as seconds in which it was busy.
type Lanes [NumLanes]float64

// Plus adds up two.
func (l Lanes) Plus(m Lanes) Lanes {
	for lane := range l {
		l[lane] += m[lane]
	}
	return l
}

// Times is each number times x.
func (l Lanes) Times(x float64) Lanes {
	for lane := range l {
		l[lane] *= x
	}
	return l
}

// MarshalJSON is an object with the lanes' names, of those that runs may lack only where they were busy. A number that
// is not finite is null.
func (l Lanes) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for lane, x := range l {
		if x == 0 && Lane(lane).IsOptional() {
			continue
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		if text = append(strconv.AppendQuote(text, Lane(lane).String()), ':'); isFinite(x) {
			text = strconv.AppendFloat(text, x, 'g', -1, 64)
		} else {
			text = append(text, "null"...)
		}
	}
	return append(text, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Lanes) UnmarshalJSON(doc []byte) error {
	var named map[string]float64
	if err := json.Unmarshal(doc, &named); err != nil {
		return err
	}
	for lane := range l {
		l[lane] = named[Lane(lane).String()]
	}
	return nil
}
