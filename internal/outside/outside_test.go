package outside

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestTail(t *testing.T) {
	var tail Tail
	if tail.String() != "" {
		t.Errorf("%q of nothing", &tail)
	}
	for range 1000 {
		tail.Write([]byte("babble "))
	}
	tail.Write([]byte("the\nend\xff\x1b"))
	got := tail.String()
	if !strings.HasPrefix(got, ": ") || len(got) > TailBytes+10 || strings.ContainsAny(got, "\n\x1b") ||
		!strings.Contains(got, "babble the end?") {
		t.Errorf("%q", got)
	}
	tail.Write(make([]byte, 1<<20))
	if len(tail.text) != TailBytes {
		t.Errorf("%d bytes are kept", len(tail.text))
	}
}

func TestCallError(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		err  error
		want string
	}{
		{broken, "broken"},
		{&url.Error{Op: "Post", URL: "http://s3cret", Err: broken}, "broken"},
		{&url.Error{Op: "Post", URL: "http://s3cret", Err: context.DeadlineExceeded}, "the server has not answered in 2s"},
	} {
		if got := CallError(c.err, 2*time.Second); got.Error() != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
