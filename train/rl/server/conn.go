package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
)

// idleConnection is the time for which a connection waits for a next request: less than the 5 seconds after which the
// web server of SGLang and vLLM, uvicorn, closes it. A request on a connection that closes at that moment would fail.
const idleConnection = 2 * time.Second

// mostSaidBytes bounds what an answer that is no text may have: vLLM's configuration, and checksums of all tensors.
const mostSaidBytes = 64 << 20

// conn asks one server.
type conn struct {
	name   string // for people
	base   *url.URL
	token  string
	client *http.Client
	limits Limits
}

func newConn(o *Options, u *url.URL, token string) *conn {
	names := map[string]string{SGLang: "SGLang", VLLM: "vLLM"}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns, t.IdleConnTimeout = o.AtOnce, 0, idleConnection
	t.DisableCompression = true // an answer has no more bytes than come
	refuse := func(*http.Request, []*http.Request) error {
		return errors.New("the server redirects: name the address that it means")
	}
	return &conn{name: fmt.Sprintf("%s at %s", names[o.Engine], u), base: u, token: token, limits: o.Limits,
		client: &http.Client{Transport: t, CheckRedirect: refuse}}
}

func (c *conn) close() { c.client.CloseIdleConnections() }

// request is one request of a server.
type request struct {
	method, path string
	query        url.Values
	body         any // as JSON; nil: no body
	limit        time.Duration
	mostBytes    int64 // of the answer; 0: mostSaidBytes
}

// A refusal is an answer with a status other than 200 to 299.
type refusal struct {
	status int
	said   string
}

func (r *refusal) Error() string {
	text := fmt.Sprintf("it answered %d %s", r.status, http.StatusText(r.status))
	if r.said != "" {
		text += ": " + r.said
	}
	if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
		text += ": set token_env to the name of a variable that has the server's key"
	}
	return text
}

// isMissing reports whether a server does not have what was asked for.
func isMissing(err error) bool {
	r := (*refusal)(nil)
	return errors.As(err, &r) && (r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed)
}

// An unbegun error is of a request that the server has not begun, so that it may be repeated.
type unbegun struct{ error }

func (u unbegun) Unwrap() error { return u.error }

// ask sends a request, and decodes the answer's JSON into into unless that is nil; a *[]byte gets the text. It repeats
// a request that the server has not begun: one that found no connection, or that a server which is starting, full or
// paused has put off.
func (c *conn) ask(ctx context.Context, r request, into any) error {
	for try := 0; ; try++ {
		doc, err := c.once(ctx, r)
		if as, ok := into.(*[]byte); ok {
			*as = doc
		} else if err == nil && into != nil {
			if err = budget.Unmarshal(doc, into); err != nil {
				err = fmt.Errorf("its answer cannot be read: %w (it begins with %s)", err, terminal.Quote(beginning(doc)))
			}
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, new(unbegun)) || try >= len(c.limits.Waits):
			return fmt.Errorf("%s: %s %s: %w", c.name, r.method, r.path, err)
		}
		timer := time.NewTimer(c.limits.Waits[try])
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// once sends a request and reads the answer.
func (c *conn) once(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	var body io.Reader
	if r.body != nil {
		doc, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(doc)
	}
	to := *c.base
	to.Path += r.path
	to.RawQuery = r.query.Encode()
	q, err := http.NewRequestWithContext(ctx, r.method, to.String(), body)
	if err != nil {
		return nil, err
	}
	q.Header.Set("User-Agent", "millrace")
	if r.body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.client.Do(q)
	if err != nil {
		return nil, c.plain(ctx, r, err)
	}
	defer answer.Body.Close()
	most := cmp.Or(r.mostBytes, mostSaidBytes)
	doc, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	switch {
	case err != nil:
		return nil, c.plain(ctx, r, fmt.Errorf("the answer ends in its middle: %w", err))
	case int64(len(doc)) > most:
		return nil, fmt.Errorf("its answer has more than %d bytes, which no such answer needs: is it the right server?", most)
	case answer.StatusCode/100 == 2:
		return doc, nil
	}
	err = &refusal{answer.StatusCode, said(doc)}
	if answer.StatusCode == http.StatusServiceUnavailable || answer.StatusCode == http.StatusTooManyRequests {
		err = unbegun{err}
	}
	return nil, err
}

// plain is an error of a connection in words for people.
func (c *conn) plain(ctx context.Context, r request, err error) error {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		err = of.Err // without the address, which the caller has
	}
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("it has not answered in %v", r.limit)
	}
	if of := (*net.OpError)(nil); errors.As(err, &of) && of.Op == "dial" {
		return unbegun{fmt.Errorf("there is no server (%w): start it, or correct url", of.Err)}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("it ended the connection (%w): its log says why", err)
	}
	return err
}

// said is the message of an answer that refuses: SGLang has {"error": {"message"}} and {"message"}, vLLM {"error":
// {"message"}} and {"error": text}, and FastAPI, which both use, {"detail": text or a list}.
func said(doc []byte) string {
	var all struct {
		Error, Message, Detail json.RawMessage
	}
	if budget.Unmarshal(doc, &all) != nil {
		return terminal.Quote(beginning(doc))
	}
	for _, part := range []json.RawMessage{all.Error, all.Message, all.Detail} {
		var text string
		var with struct{ Message string }
		if budget.Unmarshal(part, &text) == nil && text != "" {
			return terminal.Quote(beginning([]byte(text)))
		}
		if budget.Unmarshal(part, &with) == nil && with.Message != "" {
			return terminal.Quote(beginning([]byte(with.Message)))
		}
	}
	return terminal.Quote(beginning(doc))
}

// beginning is the first part of a text, in a line.
func beginning(text []byte) string {
	const most = 300
	all := strings.Join(strings.Fields(strings.ToValidUTF8(string(text[:min(len(text), 2*most)]), "?")), " ")
	if r := []rune(all); len(r) > most {
		return string(r[:most]) + "..."
	}
	return all
}
