package cores

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tree is /sys/devices/system of a machine: processors p and p + cores are threads of core p, and nodes have equal
// ranges of cores.
func tree(nodes, cores, threads int) fstest.MapFS {
	fs := fstest.MapFS{}
	file := func(name, text string) { fs[name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	per := cores / nodes
	for n := range nodes {
		var ranges []string
		for t := range threads {
			ranges = append(ranges, fmt.Sprintf("%d-%d", t*cores+n*per, t*cores+(n+1)*per-1))
		}
		file(fmt.Sprintf("node/node%d/cpulist", n), strings.Join(ranges, ","))
	}
	for c := range cores {
		var all []string
		for t := range threads {
			all = append(all, fmt.Sprint(t*cores+c))
		}
		for t := range threads {
			file(fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", t*cores+c), strings.Join(all, ","))
		}
	}
	return fs
}

func upTo(n int) (all []int) {
	for p := range n {
		all = append(all, p)
	}
	return all
}

func TestDivision(t *testing.T) {
	for _, c := range []struct {
		name                         string
		nodes, cores, threads, procs int
		workers                      int // with a GPU
		withEight                    int // with eight
		spread                       []int
		says                         []string
	}{
		{"two sockets", 2, 64, 2, 128, 62, 48, []int{0, 1},
			[]string{"64 cores on 2 NUMA nodes", "on 62 of them", "leave 2", "spread"}},
		{"one socket", 1, 16, 1, 16, 12, 12, nil, []string{"16 cores on one NUMA node", "on 12 of them", "leave 4"}},
		{"8 cores of two threads", 1, 8, 2, 16, 6, 6, nil,
			[]string{"8 cores on one NUMA node", "on 6 of them", "leave 2"}},
		{"8 cores of one thread", 1, 8, 1, 8, 6, 6, nil, []string{"on 6 of them", "leave 2"}},
		{"4 threads a core", 1, 16, 4, 64, 15, 12, nil, []string{"on 15 of them", "leave 1"}},
		{"7 cores", 1, 7, 2, 14, 0, 0, nil, []string{"too few"}},
		{"a laptop", 1, 4, 2, 8, 0, 0, nil,
			[]string{"4 cores on one NUMA node", "where the system puts them", "too few"}},
		{"a quota", 2, 64, 2, 16, 0, 0, []int{0, 1}, []string{"may use 16 processors at once of their 128", "spread"}},
	} {
		all, err := find(tree(c.nodes, c.cores, c.threads), upTo(c.cores*c.threads))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(divide(all, c.procs, 8).Workers); n != c.withEight {
			t.Errorf("%s: %d cores of workers with eight GPUs", c.name, n)
		}
		d := divide(all, c.procs, 1)
		if len(d.All) != c.cores || len(d.Workers) != c.workers || !slices.Equal(d.Nodes, c.spread) {
			t.Errorf("%s: %d cores, %d of workers, nodes %v", c.name, len(d.All), len(d.Workers), d.Nodes)
		}
		for _, says := range c.says {
			if !strings.Contains(d.String(), says) {
				t.Errorf("%s: %q does not say %q", c.name, d, says)
			}
		}
		for _, w := range d.Workers {
			if len(w.Processors) != c.threads {
				t.Errorf("%s: a core with %v", c.name, w.Processors)
			}
		}
	}
}

// Each allowed processor is in one core, and no other processor is in a core. A core is on one node.
func TestFindCoversProcessors(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes := rapid.IntRange(1, 4).Draw(rt, "nodes")
		cores := nodes * rapid.IntRange(1, 8).Draw(rt, "cores of a node")
		threads := rapid.IntRange(1, 3).Draw(rt, "threads")
		allowed := slices.DeleteFunc(upTo(cores*threads), func(p int) bool { return rapid.IntRange(0, 3).Draw(rt, "forbidden") == 0 })
		all, err := find(tree(nodes, cores, threads), allowed)
		if err != nil {
			rt.Fatal(err)
		}
		var got []int
		for i, c := range all {
			got = append(got, c.Processors...)
			for _, p := range c.Processors {
				if p%cores != c.Processors[0]%cores || p%cores/(cores/nodes) != c.Node {
					rt.Errorf("processor %d is in core %v", p, c)
				}
			}
			if i > 0 && c.Node < all[i-1].Node {
				rt.Errorf("cores are not in the order of nodes: %v", all)
			}
		}
		slices.Sort(got)
		if d := cmp.Diff(allowed, got); len(allowed) > 0 && d != "" {
			rt.Error(d)
		}
	})
}

func TestOddTrees(t *testing.T) {
	// No nodes and no topology: each processor is a core of node 0.
	all, err := find(fstest.MapFS{}, []int{0, 5})
	if d := cmp.Diff([]Core{{0, []int{0}}, {0, []int{5}}}, all); err != nil || d != "" {
		t.Error(err, d)
	}
	// A node that has memory only.
	fs := tree(1, 2, 1)
	fs["node/node7/cpulist"] = &fstest.MapFile{Data: []byte("\n")}
	if all, err = find(fs, []int{0, 1}); err != nil || len(all) != 2 || len(nodes(all)) != 1 {
		t.Error(all, err)
	}
	fs["node/node7/cpulist"] = &fstest.MapFile{Data: []byte("0-x\n")}
	if _, err = find(fs, []int{0, 1}); err == nil || !strings.Contains(err.Error(), "node7") {
		t.Error(err)
	}
	if d := (Division{why: "why"}); d.String() != "why" {
		t.Error(d)
	}
}

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "3": {3}, "0-2,8,10-11": {0, 1, 2, 8, 10, 11}, "5,1-2,2": {1, 2, 5}} {
		if got, err := parseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{",", "a", "1-", "-1", "3-2", "0-99999999999", "0-70000", "1,,2"} {
		if got, err := parseList(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, text := range []string{"", "0-2,8", "1-", "-1", "0-99999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseList(text); err == nil && (!slices.IsSorted(list) || len(list) > mostProcessors) {
			t.Errorf("%q: %v", text, list)
		}
	})
}
