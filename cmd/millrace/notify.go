package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/train/notify"
)

type notifyCmd struct {
	runFile
}

func (*notifyCmd) Help() string {
	return `Sends a test by each entry of the key notify, whichever events the entry tells of, and says how that went. Ends
with status 1 if one was not delivered. It reads the run file alone.

Example:

  SLACK_HOOK=https://hooks.slack.com/services/... millrace notify run.yaml`
}

// Run tries the notices of a run file.
func (c *notifyCmd) Run(p *program) error {
	config, err := c.read()
	if err != nil {
		return err
	}
	if len(config.Notify) == 0 {
		return badFlag("the run file has no notices: add some to it, such as notify: [{command: [notify-send, millrace]}]")
	}
	e := notify.Event{Event: "test", Run: config.OutputDir, Time: time.Now().UTC().Format(time.RFC3339),
		Text: config.OutputDir + ": this is a test of millrace notify"}
	e.Machine, _ = os.Hostname() // which may have no name
	failed := 0
	err = notify.Test(p.ctx, config.Notify, notify.Usual, e, func(name string, err error) {
		how := "delivered"
		if err != nil {
			failed++
			how = fmt.Sprintf("not delivered: %v", err)
		}
		_ = p.printf("%s: %s\n", name, how) // the status says it, too
	})
	switch {
	case errors.Is(err, p.ctx.Err()) && err != nil:
		return err
	case err != nil:
		return blame.BadRequest(err)
	case failed > 0:
		return fmt.Errorf("%d of %s not delivered: see above", failed, spelling.Count(len(config.Notify), "notice"))
	}
	return nil
}
