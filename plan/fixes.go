package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/optim"
)

// fixes lists the smallest changes of one key each after which the request fits, as the key would be set. A request
// that no single change fixes has an empty list. hostBytes is the budget of the host among them, else 0.
func (c *chooser) fixes() (list []string, hostBytes int64) {
	fits := func(change func(*Request)) bool {
		r := c.Request
		change(&r)
		return r.Fits(c.ctx) == nil
	}
	device := func(n int64) func(*Request) { return func(r *Request) { r.DeviceBytes = n } }
	host := func(n int64) func(*Request) { return func(r *Request) { r.HostBytes = n } }
	disk := func(n int64) func(*Request) { return func(r *Request) { r.DiskBytes = n } }
	for _, budget := range []struct {
		of  string
		now int64
		set func(int64) func(*Request)
	}{{"device", c.DeviceBytes, device}, {"host", c.HostBytes, host}, {"disk", c.DiskBytes, disk}} {
		if budget.of == "disk" && c.Guest != "" {
			continue // none of its state can be there
		}
		if budget.now == 0 && budget.of != "disk" {
			continue // no limit
		}
		if n, ok := least(budget.now, func(n int64) bool { return fits(budget.set(n)) }); ok {
			list = append(list, fmt.Sprintf("%s=%s", c.budget(budget.of), sizeFor(n)))
			if budget.of == "host" {
				hostBytes = n
			}
		}
	}
	if !c.shapes() {
		return list, hostBytes
	}
	if c.Numerics.Master != optim.F32 {
		for moments := c.Numerics.Moments + 1; moments <= optim.Dynamic8Root4; moments++ {
			if fits(func(r *Request) { r.Numerics.Moments = moments }) {
				list = append(list, fmt.Sprintf("precision.moments=%v", moments))
				break
			}
		}
	}
	if c.Numerics.Master == optim.Split && fits(func(r *Request) { r.Numerics.Master = optim.Split24 }) {
		list = append(list, "precision.master=split24")
	}
	cohorts := c.Numerics.CohortCount()
	for n := c.Numerics.CohortMicros() - 1; n > 0; n-- {
		fewer := func(r *Request) {
			r.Numerics.ForwardOnly = r.Numerics.ForwardOnly * n / r.Numerics.CohortMicros()
			r.Numerics.MicroBatches = n * cohorts
		}
		if fits(fewer) {
			list = append(list, fmt.Sprintf("batch_tokens=%d", n*cohorts*c.Numerics.Positions()))
			break
		}
		n -= n / 8 // coarse where there are many
	}
	for n := c.Numerics.BlockRows() / 2 / minBlockChunk * minBlockChunk; n >= minBlockChunk; n = n / 2 / minBlockChunk * minBlockChunk {
		if fits(func(r *Request) { r.Numerics.BlockChunk = n }) {
			list = append(list, fmt.Sprintf("numerics.block_chunk=%d", n))
			break
		}
	}
	for n := c.Numerics.SequenceLen / 2; n >= minSequenceLen; n /= 2 {
		if c.Numerics.StepPositions()%(n*c.Numerics.MicroBatch) != 0 {
			break // batch_tokens would be no whole number of rows
		}
		shorter := func(r *Request) {
			r.Numerics.ForwardOnly = r.Numerics.ForwardOnly * r.Numerics.SequenceLen / n
			r.Numerics.SequenceLen, r.Numerics.MicroBatches = n, r.Numerics.StepPositions()/(n*r.Numerics.MicroBatch)
			r.Numerics.HeadChunk = min(r.Numerics.HeadChunk, r.Numerics.Positions())
			r.Numerics.BlockChunk = min(r.Numerics.BlockChunk, r.Numerics.Positions())
		}
		if fits(shorter) {
			list = append(list, fmt.Sprintf("sequence_len=%d", n))
			break
		}
	}
	return list, hostBytes
}

// The shortest sequence and the smallest chunk that are worth suggesting.
const (
	minSequenceLen = 128
	minBlockChunk  = 256
)

// SuggestFixes adds to the error of a request that does not fit the smallest changes after which it does. It looks
// for them until the context ends, and then returns the context's error.
func (r Request) SuggestFixes(ctx context.Context, err error) error {
	if r.check() != nil {
		return err // not a matter of memory
	}
	list, hostBytes := (&chooser{Request: r, ctx: ctx}).fixes()
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	if short := (*hostShort)(nil); errors.As(err, &short) && hostBytes > 0 {
		short.needBytes = min(short.needBytes, hostBytes)
	}
	if len(list) == 0 {
		return fmt.Errorf("%w; no change of one key alone makes it fit", err)
	}
	return fmt.Errorf("%w; the smallest changes, each of which makes it fit: %s", err, strings.Join(list, ", or "))
}

// least searches above below, which does not fit, for the smallest size that fits, to within 1/256; ok is false if
// not even 2^50 does.
func least(below int64, fits func(int64) bool) (n int64, ok bool) {
	const most = 1 << 50
	if below >= most || !fits(most) {
		return 0, false
	}
	lo, hi := max(below, 1<<16), int64(most)
	for float64(hi) > float64(lo)*257/256 {
		mid := int64(math.Sqrt(float64(lo) * float64(hi)))
		if mid <= lo || mid >= hi {
			break
		}
		if fits(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, true
}

// sizeFor is a size of at least n bytes as it is written in a run file.
func sizeFor(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= 10*u.bytes {
			return fmt.Sprintf("%d%s", (n+u.bytes-1)/u.bytes, u.name)
		}
		if n >= u.bytes {
			return fmt.Sprintf("%.1f%s", math.Ceil(float64(n)/float64(u.bytes)*10)/10, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}
