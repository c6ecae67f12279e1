package runfile

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
)

// Events of a run that a notice can tell of.
const (
	EventEnded       = "ended"        // all steps are done, or it stopped early, and the model is written
	EventStopped     = "stopped"      // it was asked to stop, and is saved
	EventFailed      = "failed"       // it ended with an error
	EventDiverged    = "diverged"     // its loss or its weights did
	EventSlow        = "slow"         // its speed is below two thirds of that of before
	EventHotDrive    = "hot_drive"    // the drive of its state is nearly as hot as it warns of
	EventLittleSpace = "little_space" // there is less room than the next checkpoints and the model take
	EventSaveFailed  = "save_failed"  // a checkpoint could not be written
)

// NoticeEvents are the names of all events.
var NoticeEvents = []string{EventEnded, EventStopped, EventFailed, EventDiverged, EventSlow, EventHotDrive,
	EventLittleSpace, EventSaveFailed}

// Notice has a run tell of events, by a command or by a web hook.
type Notice struct {
	// Names of events; without any, all of them.
	On []string `yaml:"on,omitempty,flow"`
	// A program and its arguments, which no shell reads.
	Command []string `yaml:"command,omitempty,flow"`
	// The address of a web hook. Names such as $HOOK in it are variables of the environment.
	URL string `yaml:"url,omitempty"`
}

// Hears reports whether the notice tells of an event.
func (n *Notice) Hears(event string) bool { return len(n.On) == 0 || slices.Contains(n.On, event) }

// Check refuses a notice that can tell nothing. It looks at the run file alone.
func (n *Notice) Check() error {
	for _, event := range n.On {
		if !slices.Contains(NoticeEvents, event) {
			question := spelling.Question(event, NoticeEvents)
			if question == "" {
				question = ": use " + spelling.Or(NoticeEvents)
			}
			return fmt.Errorf("on: %q is no event%s", event, question)
		}
	}
	switch {
	case len(n.Command) > 0 && n.URL != "":
		return errors.New("command and url are both given: write an entry for each")
	case len(n.Command) == 0 && n.URL == "":
		return errors.New("it has neither command nor url: give it one of them")
	case n.URL == "" && n.Command[0] == "":
		return errors.New("command begins with an empty name: name a program")
	case n.URL != "" && !strings.HasPrefix(n.URL, "$"):
		return checkAddress(n.URL)
	}
	return nil
}

// checkAddress does not repeat the address, which may be a secret.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("url is no address of the web: write one such as https://example.com/hook, or $NAME for that of " +
			"a variable of the environment")
	}
	return nil
}

var variable = regexp.MustCompile(`\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})`)

// Address returns the address of the web hook, with the variables of the environment in it.
func (n *Notice) Address() (string, error) { return addressOf(n.URL) }

// addressOf returns an address of the web with the variables of the environment in it.
func addressOf(written string) (string, error) {
	missing := ""
	address := variable.ReplaceAllStringFunc(written, func(reference string) string {
		name := strings.Trim(reference, "${}")
		value := os.Getenv(name)
		if value == "" && missing == "" {
			missing = name
		}
		return value
	})
	if missing != "" {
		return "", fmt.Errorf("url names $%s, and the environment has no such variable: set it", missing)
	}
	return address, checkAddress(address)
}
