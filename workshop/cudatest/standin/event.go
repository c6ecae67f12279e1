package standin

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
)

// event points at its latest record.
type event struct {
	card   *card
	latest atomic.Pointer[record]
	timing bool
	site   string
}

// record is one place in one stream. Its channel orders what comes before it and who waits for it, and nothing else.
type record struct {
	reached chan struct{}
	at      time.Time
}

// record queues a place.
func (s *stream) record() *record {
	r := &record{reached: make(chan struct{})}
	s.queue.put(func() {
		r.at = s.card.driver.options.Now()
		close(r.reached)
	})
	return r
}

// isReached orders the caller after the record if it returns true.
func (r *record) isReached() bool {
	select {
	case <-r.reached:
		return true
	default:
		return false
	}
}

// useEvent finds an event for a call.
func (d *Driver) useEvent(call string, h driver.Event) (*event, driver.Result) {
	if e, ok := d.events.get(h); ok {
		return e, driver.Success
	}
	return nil, d.refuse(driver.InvalidHandle, "%s: %#x is no event, or it was destroyed", call, h)
}

func (d *Driver) eventCreate(h *driver.Event, flags uint32) driver.Result {
	c, r := d.enter("EventCreate")
	if r != driver.Success {
		return r
	}
	if flags&^(driver.EventBlockingSync|driver.EventDisableTiming) != 0 {
		return d.refuse(driver.InvalidValue, "EventCreate: flags %#x", flags)
	}
	d.making.Lock()
	defer d.making.Unlock()
	*h = driver.Event(d.handle())
	d.events.set(*h, &event{card: c, timing: flags&driver.EventDisableTiming == 0, site: callSite()})
	return driver.Success
}

func (d *Driver) eventDestroy(h driver.Event) driver.Result {
	c, r, proceed := d.enterRelease("EventDestroy")
	if !proceed {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	e, found := d.useEvent("EventDestroy", h)
	if found == driver.Success {
		found = c.owns("EventDestroy", "event", e.card, e.site)
	}
	if found != driver.Success {
		return first(r, found)
	}
	d.events.remove(h)
	return r
}

func (d *Driver) eventRecord(h driver.Event, on driver.Stream) driver.Result {
	c, r := d.enter("EventRecord")
	if r != driver.Success {
		return r
	}
	e, r := d.useEvent("EventRecord", h)
	if r != driver.Success {
		return r
	}
	s, r := c.use("EventRecord", on)
	if r != driver.Success {
		return r
	}
	if r := c.owns("EventRecord", "event", e.card, e.site); r != driver.Success {
		return r
	}
	e.latest.Store(s.record())
	return driver.Success
}

func (d *Driver) eventSynchronize(h driver.Event) driver.Result {
	_, r, proceed := d.enterRelease("EventSynchronize") // the event may be another card's
	if !proceed {
		return r
	}
	e, found := d.useEvent("EventSynchronize", h)
	if found != driver.Success {
		return first(r, found)
	}
	if there := e.latest.Load(); there != nil {
		<-there.reached
	}
	return first(r, e.card.result())
}

func (d *Driver) eventElapsedTime(ms *float32, start, end driver.Event) driver.Result {
	c, r := d.enter("EventElapsedTime")
	if r != driver.Success {
		return r
	}
	var at [2]*record
	for i, h := range []driver.Event{start, end} {
		e, r := d.useEvent("EventElapsedTime", h)
		if r != driver.Success {
			return r
		}
		if r := c.owns("EventElapsedTime", "event", e.card, e.site); r != driver.Success {
			return r
		}
		if !e.timing {
			return d.refuse(driver.InvalidHandle, "EventElapsedTime: the event of %s was created without timing", e.site)
		}
		if at[i] = e.latest.Load(); at[i] == nil {
			return d.refuse(driver.InvalidHandle, "EventElapsedTime: the event of %s was not recorded", e.site)
		}
	}
	if !at[0].isReached() || !at[1].isReached() {
		return driver.NotReady
	}
	*ms = float32(at[1].at.Sub(at[0].at).Seconds() * 1e3)
	return c.result()
}
