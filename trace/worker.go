package trace

import (
	"fmt"
	"strconv"
	"strings"
)

// Worker is a lane of a rank, which is one of the devices that compute, by number. The lanes of the host, update and
// disk, are those of rank 0.
type Worker struct {
	Lane Lane
	Rank int
}

// Of is the lane of a rank.
func (l Lane) Of(rank int) Worker { return Worker{l, rank} }

// The lanes of a device: the first ones, and Exchange, which a device has if there are others.
const (
	firstLanes  = 3
	deviceLanes = firstLanes + 1
)

// Index numbers workers from 0: those of rank 0 by their lanes, then the lanes of each other rank's device.
func (w Worker) Index() int {
	switch {
	case w.Rank == 0:
		return int(w.Lane)
	case w.Lane == Exchange:
		return int(NumLanes) + w.Rank*deviceLanes - 1
	}
	return int(NumLanes) + (w.Rank-1)*deviceLanes + int(w.Lane)
}

// String is the worker's name in traces: that of its lane, and of the device if it is not the first one.
func (w Worker) String() string {
	if w.Rank == 0 {
		return w.Lane.String()
	}
	return fmt.Sprintf("%v of device %d", w.Lane, w.Rank)
}

// maxRanks bounds the ranks of a trace that is read.
const maxRanks = 1024

// namedWorker is the worker of a name that String gives.
func namedWorker(name string) (Worker, bool) {
	lane, rank, numbered := strings.Cut(name, " of device ")
	w := Worker{Lane: NumLanes}
	for l := range NumLanes {
		if l.String() == lane {
			w.Lane = l
		}
	}
	var err error
	if numbered {
		w.Rank, err = strconv.Atoi(rank)
	}
	return w, err == nil && w.Lane < NumLanes && w.Rank < maxRanks && w.String() == name && !(w.Rank > 0 && w.OnHost())
}

// OnHost reports whether the worker is a stream of the host.
func (w Worker) OnHost() bool { return w.Lane == Update || w.Lane == Disk }

// DeviceSeconds are the busy seconds of the lanes of a device.
type DeviceSeconds struct {
	Fetch    float64 `json:"fetch"`
	Compute  float64 `json:"compute"`
	Drain    float64 `json:"drain"`
	Exchange float64 `json:"exchange"`
}

// ByDevice has the seconds of workers by device; that of the host's lanes is in none.
func ByDevice(workers []Worker, seconds []float64) (devices []DeviceSeconds) {
	for i, w := range workers {
		devices = add(devices, w, seconds[i])
	}
	return devices
}

func add(devices []DeviceSeconds, w Worker, seconds float64) []DeviceSeconds {
	if w.Rank == len(devices) {
		devices = append(devices, DeviceSeconds{})
	}
	switch d := &devices[w.Rank]; w.Lane {
	case Fetch:
		d.Fetch += seconds
	case Compute:
		d.Compute += seconds
	case Drain:
		d.Drain += seconds
	case Exchange:
		d.Exchange += seconds
	}
	return devices
}

// Workers are all workers of a number of ranks, by their index.
func Workers(ranks int) (all []Worker) {
	for lane := range NumLanes {
		if lane != Exchange || ranks > 1 {
			all = append(all, Worker{Lane: lane})
		}
	}
	for rank := 1; rank < ranks; rank++ {
		for lane := range Lane(firstLanes) {
			all = append(all, Worker{lane, rank})
		}
		all = append(all, Worker{Exchange, rank})
	}
	return all
}
