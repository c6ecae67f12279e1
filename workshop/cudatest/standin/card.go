package standin

import (
	"sync/atomic"

	"github.com/millrace/millrace/device/cuda/driver"
)

// card is one of the GPUs, with its primary context. What belongs to a context names its card.
type card struct {
	driver   *Driver
	number   int
	retained int            // of the primary context; Driver.making guards it
	used     uint64         // bytes of memory; Driver.making guards it
	context  atomic.Uintptr // 0: it has not been made
	lost     atomic.Int32   // the sticky result; 0 while the context is sound

	peers table[uintptr, bool] // contexts whose memory this one reaches
}

// cardOf is the card whose context that is, nil for any other value.
func (d *Driver) cardOf(context uintptr) *card {
	for _, c := range d.cards {
		if context != 0 && c.context.Load() == context {
			return c
		}
	}
	return nil
}

func (c *card) kill(r driver.Result) { c.lost.CompareAndSwap(0, int32(r)) }

// result is the sticky one.
func (c *card) result() driver.Result { return driver.Result(c.lost.Load()) }

// lose makes the context fail with r from now on.
func (c *card) lose(r driver.Result, format string, args ...any) {
	c.driver.misused(format, args...)
	c.kill(r)
}

// capability is the card's compute capability.
func (c *card) capability() [2]int32 {
	if odd, ok := c.driver.options.Odd[c.number]; ok {
		return odd
	}
	return c.driver.options.Capability
}

// reaches reports whether memory of another card is there for kernels and copies of this one.
func (c *card) reaches(other *card) bool {
	if other == c {
		return true
	}
	is, _ := c.peers.get(other.context.Load())
	return is
}

// owns refuses a handle that was made in another context than the current one, c's.
func (c *card) owns(call, what string, of *card, site string) driver.Result {
	if of == c {
		return driver.Success
	}
	return c.driver.refuse(driver.InvalidHandle, "%s: the %s of %s belongs to card %d, and the context of card %d is "+
		"current", call, what, site, of.number, c.number)
}
