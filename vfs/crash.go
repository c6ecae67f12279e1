package vfs

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
)

// CrashImage is a state of the files after a power cut.
type CrashImage struct {
	// Point names the operation before which the cut came ("before sync of a/b"), and what survived of unsynced data.
	Point string
	// FS is the file system after the restart. Everything in it is durable. It can be changed, and crashed again.
	FS *Mem
}

// RecordCrashes starts to note crash points: before and after every sync, and after every change of a name.
func (m *Mem) RecordCrashes() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recording = true
	m.point("start")
}

// crashPoint is a copy of all nodes; bytes are shared.
type crashPoint struct {
	where string
	root  *node
}

// point notes a crash point. The caller holds the lock.
func (m *Mem) point(where string) {
	if m.recording {
		m.points = append(m.points, crashPoint{fmt.Sprintf("operation %d, %s", m.ops, where), m.root.copy(map[*node]*node{})})
	}
}

// copy copies a tree; a node with two names is copied once.
func (n *node) copy(done map[*node]*node) *node {
	if c := done[n]; c != nil {
		return c
	}
	n.owned = false // from now on the bytes are shared
	c := &node{data: n.data, durable: n.durable, pending: slices.Clone(n.pending)}
	done[n] = c
	if n.isDir() {
		c.names, c.durableNames = map[string]*node{}, map[string]*node{}
		for name, child := range n.names {
			c.names[name] = child.copy(done)
		}
		for name, child := range n.durableNames {
			c.durableNames[name] = child.copy(done)
		}
	}
	return c
}

// How names and contents that were not synced may fare. Names survive in order (file systems journal them), so that
// "all" at every change of a name covers every prefix. Contents survive in any way; these are the ones that find bugs.
var (
	nameFates = []string{"lost", "kept"}
	dataFates = map[string]func(*node) []byte{
		"lost": func(n *node) []byte { return n.durable },
		"kept": func(n *node) []byte { return n.data },
		"torn": func(n *node) []byte { // half of the writes, and half of the next
			data := slices.Clone(n.durable)
			half := len(n.pending) / 2
			for _, c := range n.pending[:half] {
				data = c.apply(data)
			}
			if half < len(n.pending) {
				if c := n.pending[half]; len(c.data) > 1 {
					data = change{c.off, c.data[:len(c.data)/2]}.apply(data)
				}
			}
			return data
		},
		"reordered": func(n *node) []byte { // only the last write
			if len(n.pending) == 0 {
				return n.durable
			}
			return n.pending[len(n.pending)-1].apply(slices.Clone(n.durable))
		},
	}
)

// CrashImages lists the states that a power cut could have left at the crash points since [Mem.RecordCrashes]: at each,
// names that were not synced lost or kept, combined with contents that were not synced lost, kept, torn or reordered. A
// state that differs from an earlier one in nothing is left out.
func (m *Mem) CrashImages() []CrashImage {
	m.mu.Lock()
	defer m.mu.Unlock()
	var images []CrashImage
	seen := map[[32]byte]bool{}
	for _, p := range m.points {
		for _, names := range nameFates {
			for _, data := range slices.Sorted(maps.Keys(dataFates)) {
				root := p.root.crash(names == "kept", dataFates[data], map[*node]*node{})
				h := sha256.New()
				root.identify(h, map[*node]int{})
				if key := [32]byte(h.Sum(nil)); !seen[key] {
					seen[key] = true
					images = append(images, CrashImage{
						Point: fmt.Sprintf("%s, unsynced names %s, unsynced contents %s", p.where, names, data),
						FS:    &Mem{root: root},
					})
				}
			}
		}
	}
	return images
}

// crash is the tree after a restart.
func (n *node) crash(keepNames bool, contents func(*node) []byte, done map[*node]*node) *node {
	if c := done[n]; c != nil {
		return c
	}
	c := &node{}
	done[n] = c
	if !n.isDir() {
		c.data = contents(n)
		c.durable = c.data
		return c
	}
	c.names = map[string]*node{}
	from := n.durableNames
	if keepNames {
		from = n.names
	}
	for name, child := range from {
		c.names[name] = child.crash(keepNames, contents, done)
	}
	c.durableNames = maps.Clone(c.names)
	return c
}

// identify writes what tells trees apart: names, links and contents.
func (n *node) identify(to io.Writer, seen map[*node]int) {
	if i, ok := seen[n]; ok {
		fmt.Fprintf(to, "=%d", i)
		return
	}
	seen[n] = len(seen)
	if !n.isDir() {
		fmt.Fprintf(to, "%d:", len(n.data))
		to.Write(n.data)
		return
	}
	fmt.Fprintf(to, "{%d", len(n.names))
	for _, name := range slices.Sorted(maps.Keys(n.names)) {
		fmt.Fprintf(to, "%q", name)
		n.names[name].identify(to, seen)
	}
}
