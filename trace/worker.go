package trace

import (
	"fmt"
	"strconv"
	"strings"
)

// Worker is a lane of a rank, which is one of the devices that compute, by number. The lanes of the host, update, disk,
// send and receive, are those of rank 0.
type Worker struct {
	Lane Lane
	Rank int
}

// Of is the lane of a rank.
func (l Lane) Of(rank int) Worker { return Worker{l, rank} }

// Crew says which workers there are.
type Crew struct {
	Ranks   int  // devices that compute; 0 is one
	Network bool // there are other hosts, and so the lanes send and receive
}

// The lanes of a device: the first ones, and Exchange, which a device has if there are others. The lanes of this host
// that are not Send and Receive come first.
const (
	firstLanes  = 3
	deviceLanes = firstLanes + 1
	localLanes  = int(Exchange) + 1
)

// Index numbers the workers of the crew from 0: the lanes of rank 0, then those of each other rank's device, and the
// network's last.
func (c Crew) Index(w Worker) int {
	switch {
	case w.Lane == Send:
		return c.local()
	case w.Lane == Receive:
		return c.local() + 1
	case w.Rank == 0:
		return int(w.Lane)
	case w.Lane == Exchange:
		return localLanes + w.Rank*deviceLanes - 1
	}
	return localLanes + (w.Rank-1)*deviceLanes + int(w.Lane)
}

// local is the number of workers that are not the network's.
func (c Crew) local() int {
	if c.Ranks <= 1 {
		return localLanes - 1 // no exchange
	}
	return localLanes + (c.Ranks-1)*deviceLanes
}

// Workers are all workers of the crew, by their index.
func (c Crew) Workers() []Worker {
	all := make([]Worker, 0, c.local()+2)
	for lane := range Lane(localLanes) {
		if lane != Exchange || c.Ranks > 1 {
			all = append(all, Worker{Lane: lane})
		}
	}
	for rank := 1; rank < c.Ranks; rank++ {
		for lane := range Lane(firstLanes) {
			all = append(all, Worker{lane, rank})
		}
		all = append(all, Worker{Exchange, rank})
	}
	if c.Network {
		all = append(all, Worker{Lane: Send}, Worker{Lane: Receive})
	}
	return all
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
func (w Worker) OnHost() bool { return w.Lane == Update || w.Lane == Disk || w.OnNetwork() }

// OnNetwork reports whether the worker moves bytes between hosts.
func (w Worker) OnNetwork() bool { return w.Lane == Send || w.Lane == Receive }

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
