package generate

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/nn"
)

// growing are the texts that share caches: some have a place each, where they grow by a token in each pass, and the
// others wait. A text that ends leaves its place to the next one at once. No text depends on that, since its tokens are
// chosen by its number and their positions, and the model computes it by itself.
//
// There are blocks for one text of the greatest length at least. If no block is left for a text that grows, what ended
// texts have left is forgotten first; then the text that has begun last makes room: its place and its blocks are taken,
// and its tokens are read again when there is room. So the text that has begun first always grows, and each text comes
// to be the first.
type growing struct {
	*texts
	at      []*writing     // by place
	waiting []*writing     // those that had a place come first, in the order in which they had begun
	fresh   map[string]int // by prompt: texts with it that have not begun
	begun   int            // number of texts that have
	putOffs int            // times that a text made room
}

func newGrowing(t *texts, queue []*writing) *growing {
	g := &growing{texts: t, at: make([]*writing, t.places()), waiting: queue, fresh: map[string]int{}}
	for _, w := range queue {
		w.prompt = key(w.ids)
		g.fresh[w.prompt]++
	}
	return g
}

// key is tokens as the key of a map.
func key(ids []int32) string {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = append(b, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return string(b)
}

// arrange gives places to texts that wait, as long as there is room, and has all that have one have the blocks that
// their next pass takes. It reports whether any has a place.
func (g *growing) arrange() (busy bool, err error) {
	var waiting []*writing
	full := false
	for _, w := range g.waiting {
		switch {
		case full:
		case g.awaitsPrompt(w):
			waiting = append(waiting, w)
			continue
		default:
			entered, err := g.enter(w)
			if err != nil {
				return false, err
			}
			if entered {
				continue
			}
			full = true // nor is there for a shorter one: the order is kept
		}
		waiting = append(waiting, w)
	}
	g.waiting = waiting
	if g.read != nil {
		err = g.makeRoom()
	}
	return slices.ContainsFunc(g.at, func(w *writing) bool { return w != nil }), err
}

// awaitsPrompt reports whether a text with the same prompt reads it, which this one will share.
func (g *growing) awaitsPrompt(w *writing) bool {
	return !w.hasBegun() && slices.ContainsFunc(g.at, func(a *writing) bool {
		return a != nil && a.readsPrompt && a.prompt == w.prompt
	})
}

// enter gives a text a place, if there is one and blocks for what it has to read.
func (g *growing) enter(w *writing) (bool, error) {
	place := g.idlePlace(w.ids)
	if place < 0 {
		return false, nil
	}
	if g.read != nil {
		source, n := g.source(w.ids)
		if n <= g.known(place, w.ids) {
			source, n = place, g.known(place, w.ids)
		}
		switch {
		case g.hasRoom(place, source, n, len(w.ids)):
		case g.isIdle():
			for p := range g.at {
				g.forget(p)
			}
			source = place
		default:
			return false, nil
		}
		if source != place {
			if err := g.share(place, source, n); err != nil {
				return false, err
			}
		}
	}
	if !w.hasBegun() {
		g.fresh[w.prompt]--
		w.order, w.begun = g.begun, time.Now()
		g.begun++
		// Where others with the same prompt wait, it is read by itself, so that these begin where it ends.
		w.readsPrompt = g.fresh[w.prompt] > 0 && len(g.at) > 1 && len(g.read[place]) < len(w.ids)-1 &&
			len(w.ids) > leastShared
	}
	g.at[place] = w
	return true, nil
}

// idlePlace is a place without a text, or -1: that whose latest text has most of this one, or else the one that has had
// none for longest.
func (g *growing) idlePlace(ids []int32) int {
	best, known := -1, 0
	for p, w := range g.at {
		if w != nil {
			continue
		}
		if g.read == nil {
			return p
		}
		n := g.known(p, ids)
		if best < 0 || n > known || n == known && g.asked[p] < g.asked[best] {
			best, known = p, n
		}
	}
	return best
}

// leastShared is the number of positions that texts share at least: fewer are computed as soon as copied.
const leastShared = 16

// source is the place whose text has most of the first positions of a text, and how many it has; 0 if none has enough.
func (g *growing) source(ids []int32) (place, n int) {
	for p := range g.at {
		of := g.common(p, ids)
		if of < len(g.read[p]) && !g.Plan.Model.CanGoBack() {
			of = 0
		}
		if of > n && of >= leastShared {
			place, n = p, of
		}
	}
	return place, n
}

// hasRoom reports whether a text that has n positions of a source would have the blocks of the others up to an end, if
// what ended texts have left were forgotten; and besides one for every fourth of the texts that grow, which will soon
// take one.
func (g *growing) hasRoom(place, source, n, to int) bool {
	var idle []int
	growing := 0
	for p, w := range g.at {
		if w != nil {
			growing++
		} else if p != source {
			idle = append(idle, p)
		}
	}
	need := g.pool.blocksOf(to) - n/g.pool.of.BlockRows
	if source == place {
		need = g.pool.lacks(place, n, to)
	}
	return need+growing/4 <= g.pool.frees(idle)
}

func (g *growing) isIdle() bool {
	return !slices.ContainsFunc(g.at, func(w *writing) bool { return w != nil })
}

// share gives a place the first positions of the text of another one.
func (g *growing) share(place, source, n int) error {
	g.forget(place)
	g.pool.share(place, source, n)
	g.read[place] = slices.Clone(g.read[source][:n])
	if g.Plan.Model.CanGoBack() {
		return nil
	}
	return g.Engine.TakeOver(nn.Takeover{Latest: [][2]int{{source, place}}})
}

// forget takes its blocks from a place.
func (g *growing) forget(place int) {
	g.pool.keep(place, 0)
	g.read[place] = g.read[place][:0]
}

// forgetIdle forgets the ended text that was asked for least lately. It reports whether there was any.
func (g *growing) forgetIdle() bool {
	best := -1
	for p, w := range g.at {
		if w == nil && len(g.pool.tables[p]) > 0 && (best < 0 || g.asked[p] < g.asked[best]) {
			best = p
		}
	}
	if best >= 0 {
		g.forget(best)
	}
	return best >= 0
}

// makeRoom has all texts that have a place have the blocks that their next pass takes, the one that has begun first
// before the others.
func (g *growing) makeRoom() error {
	for order := g.inOrder(); len(order) > 0; order = order[1:] {
		place := order[0]
		text := g.at[place].toRead()
		from := g.known(place, text)
		g.trim(place, from)
		for g.pool.lacks(place, from, len(text)) > len(g.pool.free) {
			if g.forgetIdle() {
				continue
			}
			last := len(order) - 1
			g.putOff(order[last])
			if order = order[:last]; last == 0 {
				return nil
			}
		}
		if err := g.begin(place, from, len(text)); err != nil {
			return err
		}
	}
	return nil
}

// inOrder lists the places of texts, that of the one that has begun first before the others.
func (g *growing) inOrder() (places []int) {
	for p, w := range g.at {
		if w != nil {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(g.at[a].order, g.at[b].order) })
	return places
}

// putOff takes its place from a text, which waits before all that have begun after it.
func (g *growing) putOff(place int) {
	w := g.at[place]
	g.at[place], w.readsPrompt = nil, false
	g.forget(place)
	i := slices.IndexFunc(g.waiting, func(o *writing) bool { return !o.hasBegun() || o.order > w.order })
	if i < 0 {
		i = len(g.waiting)
	}
	g.waiting = slices.Insert(g.waiting, i, w)
	g.putOffs++
}

// begunBefore are the texts that wait and have begun.
func (g *growing) begunBefore() (begun []*writing) {
	for _, w := range g.waiting {
		if w.hasBegun() {
			begun = append(begun, w)
		}
	}
	return begun
}
