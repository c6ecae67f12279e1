package standin

import (
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/internal/fault"
)

// stream is a queue and the goroutine that works on it.
type stream struct {
	card   *card
	queue  *queue
	random *rand.Rand // the goroutine's
	done   chan struct{}
	site   string
}

func (d *Driver) streamCreate(h *driver.Stream, flags uint32, priority int32) driver.Result {
	c, r := d.enter("StreamCreateWithPriority")
	if r != driver.Success {
		return r
	}
	if flags != driver.StreamNonBlocking {
		return d.refuse(driver.InvalidValue, "StreamCreateWithPriority: flags %#x: the stand-in has no default stream to order with", flags)
	}
	d.making.Lock()
	defer d.making.Unlock()
	*h = driver.Stream(d.handle())
	s := &stream{card: c, queue: newQueue(), done: make(chan struct{}), site: callSite()}
	s.random = rand.New(rand.NewPCG(d.options.Seed, uint64(*h)))
	d.streams.set(*h, s)
	fault.Go(s.work)
	return driver.Success
}

func (s *stream) work() {
	defer close(s.done)
	for work := s.queue.take(); work != nil; work = s.queue.take() {
		s.pause()
		work()
	}
}

func (s *stream) pause() {
	if most := s.card.driver.options.MaxDelay; most > 0 && s.random.IntN(2) == 0 {
		time.Sleep(time.Duration(s.random.Int64N(int64(most))))
	}
}

// run queues work that is skipped once the context is lost, and that loses it by what it returns.
func (s *stream) run(call string, work func() (driver.Result, error)) {
	s.queue.put(func() {
		if s.card.result() != driver.Success {
			return
		}
		if r, err := work(); r != driver.Success {
			s.card.lose(r, "%s, as it ran: %v", call, err)
		}
	})
}

// use finds a stream of the card whose context is current. CUDA takes copies on streams of other contexts, too.
func (c *card) use(call string, h driver.Stream) (*stream, driver.Result) {
	d := c.driver
	if s, ok := d.streams.get(h); ok {
		return s, c.owns(call, "stream", s.card, s.site)
	}
	if h == 0 {
		return nil, d.refuse(driver.InvalidHandle, "%s: the default stream", call)
	}
	return nil, d.refuse(driver.InvalidHandle, "%s: %#x is no stream, or it was destroyed", call, h)
}

func (d *Driver) streamDestroy(h driver.Stream) driver.Result {
	c, r, proceed := d.enterRelease("StreamDestroy")
	if !proceed {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	s, found := c.use("StreamDestroy", h)
	if found != driver.Success {
		return first(r, found)
	}
	d.end(h, s)
	return r
}

// end lets a stream finish its work and stop. The caller holds making.
func (d *Driver) end(h driver.Stream, s *stream) {
	d.streams.remove(h)
	d.ended = append(d.ended, s)
	s.queue.put(nil)
}

func (d *Driver) streamSynchronize(h driver.Stream) driver.Result {
	c, r, proceed := d.enterRelease("StreamSynchronize")
	if !proceed {
		return r
	}
	s, found := c.use("StreamSynchronize", h)
	if found != driver.Success {
		return first(r, found)
	}
	here := s.record()
	<-here.reached
	return first(r, c.result())
}

func (d *Driver) streamWaitEvent(h driver.Stream, e driver.Event, flags uint32) driver.Result {
	c, r := d.enter("StreamWaitEvent")
	if r != driver.Success {
		return r
	}
	s, r := c.use("StreamWaitEvent", h)
	if r != driver.Success {
		return r
	}
	ev, r := d.useEvent("StreamWaitEvent", e) // which may be another card's
	if r != driver.Success {
		return r
	}
	if flags != 0 {
		return d.refuse(driver.InvalidValue, "StreamWaitEvent: flags %#x", flags)
	}
	if there := ev.latest.Load(); there != nil {
		s.queue.put(func() { <-there.reached })
	}
	return driver.Success
}
