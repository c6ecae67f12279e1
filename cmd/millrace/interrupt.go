package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/millrace/millrace/internal/fault"
)

// interrupts turns signals into an orderly end. A verb that saves listens to stop: the first signal closes it, the second one
// cancels the context. For every other verb the first signal cancels.
type interrupts struct {
	stop chan struct{}

	saves    atomic.Bool // the verb listens to stop
	canceled atomic.Bool
	done     chan struct{}
	watching fault.Group
}

// watch starts to listen.
func watch(signals <-chan os.Signal, cancel context.CancelFunc, messages io.Writer) *interrupts {
	i := &interrupts{stop: make(chan struct{}), done: make(chan struct{})}
	i.watching.Go(func() {
		defer cancel()
		stopping := false
		for {
			select {
			case <-i.done:
				return
			case <-signals:
			}
			if i.saves.Load() && !stopping {
				stopping = true
				fmt.Fprintln(messages, "interrupted: finishing the step and saving; once more to stop at once without saving")
				close(i.stop)
				continue
			}
			// From here on a signal kills, in case something hangs.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			i.canceled.Store(true)
			cancel()
		}
	})
	return i
}

// end stops listening.
func (i *interrupts) end() {
	close(i.done)
	i.watching.Wait()
}

// aborted is the exit status of a verb that was cancelled. A run that should have saved and did not has failed.
func (i *interrupts) aborted() int {
	if i.saves.Load() {
		return exitFailed
	}
	return exitInterrupted
}
