package fault

import (
	"context"
	"sync/atomic"
)

// Share calls f for each of n things on several goroutines, and returns the first error; after one, and when ctx ends, no call begins.
func Share(ctx context.Context, n, workers int, f func(i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var wg Group
	for range min(workers, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					stop(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
