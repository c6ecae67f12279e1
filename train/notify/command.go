package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/millrace/millrace/internal/outside"
)

// afterEnd bounds the wait for outputs that processes hold which the command has left running.
const afterEnd = time.Second

// start runs the command with an event on standard input and in variables. Where the time is over, it ends the command
// with all processes that it has started in its group.
func (o *outlet) start(ctx context.Context, e Event, doc []byte) error {
	ctx, cancel := context.WithTimeout(ctx, o.limits.Command)
	defer cancel()
	c := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)
	c.Stdin = bytes.NewReader(append(doc, '\n'))
	c.Env = append(os.Environ(), "MILLRACE_EVENT="+e.Event, "MILLRACE_RUN="+e.Run, "MILLRACE_STEP="+strconv.Itoa(e.Step),
		"MILLRACE_TEXT="+e.Text)
	var out outside.Tail
	c.Stdout, c.Stderr, c.WaitDelay = &out, &out, afterEnd
	outside.InOwnGroup(c)
	err := c.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the command was still running after %v, and was ended%s", o.limits.Command, &out)
	case ctx.Err() != nil:
		return errNoTime
	}
	return fmt.Errorf("%w%s", err, &out)
}
