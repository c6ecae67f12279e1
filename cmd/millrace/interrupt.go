package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
)

// listen has the signals that ask for an end delivered: an interrupt, SIGTERM, and SIGHUP when the terminal is gone,
// unless nohup has turned that off. A process of a launcher has launcherSignals, too. A closed pipe ends nothing:
// writes to it fail, and that is an error of results alone.
func listen(launched bool) <-chan os.Signal {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if launched && len(launcherSignals) > 0 {
		signal.Notify(signals, launcherSignals...)
	}
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE)
	return signals
}

// interrupts turns signals into an orderly end. An interrupt (Ctrl-C) first ends an answer, if the verb is giving
// one. Else the first signal closes stop if the verb has something to finish before it ends, such as a step and a
// checkpoint of it, and else cancels the context. The next signal that counts cancels in any case, and the one after a
// cancellation ends the program at once.
type interrupts struct {
	answer   *answering
	asked    <-chan struct{} // a page asks for an end after the step, which counts if no signal has
	stop     chan struct{}
	done     chan struct{}
	now      func() time.Time // the clock
	kill     func()           // ends the program at once
	watching fault.Group
}

// oneRequest bounds the time in which signals are one request to end. One request often comes as several signals:
// timeout(1) signals its child and then the child's process group, and a closed terminal has a SIGHUP from the kernel
// and one from the shell.
const oneRequest = 2 * time.Second

// patience bounds the time that work with nothing to lose takes to end after the first signal: a pass of a large model,
// a network drive that does not answer. After that the process ends without waiting, as by a kill, but with the status
// of an interrupt. 0 waits without end, for tests.
var patience = 5 * time.Second

// askToStop has the run end after its step, as a first signal does. Any goroutine may call it.
func (p *program) askToStop() {
	select {
	case p.asked <- struct{}{}:
	default: // it was asked before
	}
}

// giveUp ends the program.
func (i *interrupts) giveUp(messages *progress) {
	messages.line("millrace: interrupted before there was anything to save: what was under way took longer than %v to end and was left as it was; nothing is lost", patience)
	i.kill()
}

// watch starts to listen. finishes says what the verb has to finish at the moment; it is empty where that is nothing.
func (i *interrupts) watch(signals <-chan os.Signal, cancel context.CancelFunc, messages *progress, finishes func() string) {
	i.watching.Go(func() {
		defer cancel()
		var counted time.Time // when the latest signal came that counted; zero: none has
		cancelled := false
		for {
			var s os.Signal
			select {
			case <-i.done:
				return
			case s = <-signals:
			case <-i.asked:
				if s = syscall.SIGTERM; !counted.IsZero() {
					continue
				}
			}
			if s == os.Interrupt && i.answer.end() {
				continue
			}
			// A lost terminal asks for an end, and not for a quicker one.
			isFirst, now := counted.IsZero(), i.now()
			if !isFirst && (s == syscall.SIGHUP || now.Sub(counted) < oneRequest) {
				continue
			}
			counted = now
			what := finishes()
			switch {
			case cancelled: // and something hangs
				i.kill()
			case what != "" && isFirst:
				close(i.stop)
				messages.note("interrupted: %s; once more after %v to stop at once without saving", what, oneRequest)
			default:
				cancelled = true
				cancel()
				if what != "" {
					continue
				}
				messages.note("interrupted: stopping; once more after %v to stop at once", oneRequest)
				if patience > 0 {
					fault.AfterFunc(patience, func() { i.giveUp(messages) })
				}
			}
		}
	})
}

// answering is an answer that can be ended without an end of the program.
type answering struct {
	mu   sync.Mutex
	stop chan struct{} // nil: there is no answer, or it is ending
}

// begin announces an answer. stop is closed when the user ends it; done has to be called after the answer.
func (a *answering) begin() (stop <-chan struct{}, done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stop = make(chan struct{})
	return a.stop, func() { a.end() }
}

// end ends the answer, if there is one.
func (a *answering) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stop == nil {
		return false
	}
	close(a.stop)
	a.stop = nil
	return true
}

// end stops listening.
func (i *interrupts) end() {
	close(i.done)
	i.watching.Wait()
}

// progress is standard error as far as nothing depends on it: several goroutines write to it, and a terminal or a
// pipe that is gone ends no run. Text is written with what acts on a terminal spelled out: a name of a file or an
// answer of a server can have such characters. Draw writes a text as it is.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	speaker  string // stands before each line; empty: the program is alone, or tells of the run for all hosts
}

// speakAs has lines begin with the name of a host, which tells errors and warnings alone.
func (p *progress) speakAs(name string) { p.speaker = name + ": " }

// line writes a line of its own, over a bar that may be drawn.
func (p *progress) line(format string, args ...any) {
	clear := ""
	if p.terminal {
		clear = terminal.EraseLine
	}
	p.Draw(clear + terminal.Text(p.speaker+fmt.Sprintf(format, args...)) + "\n")
}

// note is line where that is no error, of a program that tells of the run.
func (p *progress) note(format string, args ...any) {
	if p.speaker == "" {
		p.line(format, args...)
	}
}

func (p *progress) Write(text []byte) (int, error) {
	p.Draw(terminal.Text(p.speaker + string(text)))
	return len(text), nil
}

// Draw implements [terminal.Drawer].
func (p *progress) Draw(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.w, text) // an error has no other place to go
}
