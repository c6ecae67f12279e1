package runfile

import (
	"strings"
	"testing"
)

const noticeHead = "model: m\ndatasets: [{path: a.jsonl, type: text}]\n"

func TestNotices(t *testing.T) {
	_, err := Parse([]byte(noticeHead + `notify:
- {on: [ended, failed], command: [notify-send, millrace]}
- {url: "https://example.com/hook"}
- {on: slow, url: $HOOK}
`))
	if err == nil || !strings.Contains(err.Error(), "notify[2].on must be a list") {
		t.Errorf("one event: %v", err)
	}
	c, err := Parse([]byte(noticeHead + `notify:
- {on: [ended, failed], command: [notify-send, millrace]}
- {url: "https://example.com/$TEAM/${HOOK}x"}
`))
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Notify[0]; !n.Hears(EventEnded) || n.Hears(EventSlow) || !c.Notify[1].Hears(EventSlow) {
		t.Errorf("%+v", c.Notify)
	}
	t.Setenv("HOOK", "s3cret")
	if _, err := c.Notify[1].Address(); err == nil || !strings.Contains(err.Error(), "$TEAM") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a variable that is missing: %v", err)
	}
	t.Setenv("TEAM", "a")
	if got, err := c.Notify[1].Address(); err != nil || got != "https://example.com/a/s3cretx" {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("HOOK", "ftp://s3cret")
	n := Notice{URL: "$HOOK"}
	if _, err := n.Address(); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("an address of another kind: %v", err)
	}
}

func TestNoticesRefuse(t *testing.T) {
	for entry, want := range map[string]string{
		"{on: [endet], command: [x]}":               `notify[0]: on: "endet" is no event: did you mean ended?`,
		"{on: [never], command: [x]}":               `"never" is no event: use ended, stopped, failed,`,
		"{on: [ended]}":                             "neither command nor url",
		"{command: [x], url: 'http://s3cret'}":      "write an entry for each",
		"{url: 's3cret.example.com/hook'}":          "no address of the web",
		"{url: 'https://'}":                         "no address of the web",
		"{url: \"https://s3cret.example.com/%zz\"}": "no address of the web",
		"{command: ['']}":                           "name a program",
		"{command: run.sh}":                         "notify[0].command must be a list",
		"{cmd: [x]}":                                "cmd",
	} {
		_, err := Parse([]byte(noticeHead + "notify: [" + entry + "]\n"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
}
