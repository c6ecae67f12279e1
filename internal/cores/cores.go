// Package cores knows the cores that the program may run on and the memory that is near each, and divides the cores
// between the workers of the host and the lanes of a device.
//
// With a GPU, the host updates state at the speed of its memory while lanes launch kernels and start copies. A lane
// that finds its core taken by a worker is late by a slice of the scheduler's time, milliseconds in which a GPU can run
// dry. So workers are bound to cores of their own, and lanes find the others free. Where there is more than one NUMA
// node, state is spread over the memory of all ([hostmem.Accounts.Spread]), since all workers share each piece of it.
package cores

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Core is a core of the machine: the processors (hardware threads) of it that the program may use.
type Core struct {
	Node       int // of NUMA
	Processors []int
}

// Lanes (fetch, compute, drain, and the rest of the program) get a quarter of the hardware threads, and no more than
// laneThreads for each device: a core with two threads runs two lanes, so that what they need is threads. A small
// machine can spare fewer: the lanes sleep most of the time, and workers never do. Where there are fewer than
// leastCores, a core of its own for each worker costs more than it gives.
const (
	laneThreads = 4
	leastCores  = 8
)

// Division says who has which cores.
type Division struct {
	All []Core
	// Workers are cores of their own for workers, one worker each; none: they run where the system puts them. A second
	// worker on a core's other thread would share what an update waits for: the buffers for lines on their way from
	// memory, and the divider. One alone does 30 to 42 GB/s, so six are more than the memory of eight cores gives. Moments
	// in 8 bits, 10 GB/s a core in a wait for its own results, would gain some; that was not measured.
	Workers []Core
	Nodes   []int // NUMA nodes that memory is to be spread over; none: it stays where the system puts it

	why string // there are no such cores
}

// Divide looks at this machine, of which devices with memory of their own need lanes.
func Divide(devices int) Division {
	allowed, err := Allowed(0)
	var all []Core
	if err == nil {
		all, err = find(os.DirFS("/sys/devices/system"), allowed)
	}
	if err != nil {
		return Division{why: "which cores there are cannot be told: " + err.Error()}
	}
	return divide(all, runtime.GOMAXPROCS(0), devices)
}

// divide leaves the first cores to the lanes. procs is on how many processors the program may be at once.
func divide(all []Core, procs, devices int) Division {
	d := Division{All: all, Nodes: nodes(all)}
	processors := 0
	for _, c := range all {
		processors += len(c.Processors)
	}
	switch {
	case len(all) < leastCores:
		d.why = "they are too few to leave some to lanes"
	case procs < processors:
		d.why = fmt.Sprintf("the program may use %d processors at once of their %d", procs, processors)
	default:
		lanes := 0
		for left := min(laneThreads*devices, processors/4); left > 0; lanes++ {
			left -= len(all[lanes].Processors)
		}
		d.Workers = all[lanes:]
	}
	if len(d.Nodes) < 2 {
		d.Nodes = nil
	}
	return d
}

// nodes are the nodes of cores, each once, in order.
func nodes(cores []Core) []int {
	var list []int
	for _, c := range cores {
		list = append(list, c.Node)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// String describes for people the division with a GPU.
func (d Division) String() string {
	if len(d.All) == 0 {
		return d.why
	}
	where := fmt.Sprintf("%d cores on %d NUMA nodes", len(d.All), len(nodes(d.All)))
	if len(d.Nodes) == 0 {
		where = fmt.Sprintf("%d cores on one NUMA node", len(d.All))
	}
	if len(d.Workers) == 0 {
		where += "; with a GPU, updates run where the system puts them: " + d.why
	} else {
		where += fmt.Sprintf("; with a GPU, updates run on %d of them and leave %d to its lanes", len(d.Workers),
			len(d.All)-len(d.Workers))
	}
	if len(d.Nodes) > 0 {
		where += ", and state is spread over the memory of all nodes"
	}
	return where
}

// find reads the cores of the allowed processors from a tree as Linux has it at /sys/devices/system, by node and
// number.
func find(root fs.FS, allowed []int) ([]Core, error) {
	node := map[int]int{} // by processor; 0 where the system has no nodes
	dirs, err := fs.Glob(root, "node/node[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(dir, "node/node"))
		if err != nil {
			continue
		}
		list, err := readList(root, dir+"/cpulist")
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			node[p] = n
		}
	}
	var cores []Core
	seen := map[int]bool{}
	for _, p := range allowed {
		if seen[p] {
			continue
		}
		siblings, err := readList(root, fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", p))
		if err != nil || !slices.Contains(siblings, p) {
			siblings = []int{p} // a system that does not tell: each processor counts as a core
		}
		c := Core{Node: node[p]}
		for _, s := range siblings {
			if !seen[s] && slices.Contains(allowed, s) {
				seen[s] = true
				c.Processors = append(c.Processors, s)
			}
		}
		cores = append(cores, c)
	}
	slices.SortStableFunc(cores, func(a, b Core) int { return a.Node - b.Node })
	return cores, nil
}

// readList reads a file with a list of numbers, such as "0-3,8,10-11".
func readList(root fs.FS, name string) ([]int, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	list, err := parseList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return list, nil
}

// mostProcessors is more than Linux can have.
const mostProcessors = 1 << 16

func parseList(text string) ([]int, error) {
	var list []int
	if text == "" {
		return nil, nil // a node with memory and no processors
	}
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last >= mostProcessors {
			return nil, fmt.Errorf("%q is not a list of processors", text)
		}
		for p := first; p <= last; p++ {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
