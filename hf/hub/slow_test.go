package hub

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// drip sends some bytes in each interval, as long as its request lasts.
type drip struct {
	ctx   context.Context
	every time.Duration
	bytes int
	sent  int64
}

func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(d.every):
		n := min(d.bytes, len(p))
		d.sent += int64(n)
		return n, nil
	case <-d.ctx.Done():
		return 0, context.Cause(d.ctx)
	}
}

// A server that sends too little in five minutes is given up, also if it is never silent; one that sends enough is not.
func TestSlowServers(t *testing.T) {
	for name, c := range map[string]struct {
		every time.Duration
		bytes int
		ends  time.Duration // 0: not within an hour
	}{
		"a byte before each silence ends": {stallAfter - time.Second, 1, rateWindow},
		"a byte a second":                 {time.Second, 1, rateWindow},
		"silence":                         {time.Hour, 1, stallAfter},
		"a modem":                         {time.Second, 4 << 10, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			begin := time.Now()
			body := newStallReader(&drip{ctx: ctx, every: c.every, bytes: c.bytes}, cancel, noData)
			defer body.stop()
			var err error
			for buf := make([]byte, 8<<10); err == nil && time.Since(begin) < time.Hour; {
				_, err = body.Read(buf)
			}
			if took := time.Since(begin); (err != nil) != (c.ends > 0) || err != nil && took != c.ends {
				t.Errorf("%s: after %v, error %v", name, took, err)
			}
		})
	}
}
