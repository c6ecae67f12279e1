package hub

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
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// client gives up on a server that does not answer; a body may take as long as it needs, see stallReader. A server
// that gets a file may be busy for minutes before it answers: it puts the parts together.
var (
	client = newClient(30 * time.Second)
	sender = newClient(10 * time.Minute)
)

func newClient(patience time.Duration) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = patience
	t.Proxy, t.DialContext = proxyOf, dial
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}
}

// get sends a request to the endpoint for the bytes from offset on.
func (h *Hub) get(ctx context.Context, address string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil || req.URL.Host == "" {
		return nil, fmt.Errorf("HF_ENDPOINT %q is not an address: use one such as https://huggingface.co", h.shownEndpoint())
	}
	if offset > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	return h.do(req)
}

// do sends a request. The token goes to the endpoint alone, and not to one that is not encrypted, unless that is on
// this machine, or in a private network where the user allows that.
func (h *Hub) do(req *http.Request) (*http.Response, error) {
	g, err := h.guard()
	if err != nil {
		return nil, err
	}
	if err := g.check(req.URL); err != nil {
		return nil, fmt.Errorf("%s did not answer as a hub does: %w", h.shownEndpoint(), err)
	}
	server := req.URL.Host
	if g.owns(req.URL) {
		server = h.shownEndpoint()
		if h.Token != "" && req.URL.Scheme != "https" && !isLoopback(req.URL.Hostname()) {
			if !h.TokenOverHTTP {
				return nil, &exposedError{h.shownEndpoint(),
					", or set " + overHTTPVariable + "=1 if the hub is in a private network"}
			}
			g.exposed = &exposedError{h.shownEndpoint(), "; it is in no private network, and so " + overHTTPVariable +
				" does not count"}
			if !g.mayBePrivate() {
				return nil, g.exposed
			}
			if proxy := proxyFor(req); proxy != nil && !isPrivateHost(req.URL.Hostname()) {
				return nil, &exposedError{h.shownEndpoint(), "; " + overHTTPVariable +
					" does not count for a name that a proxy looks up (see NO_PROXY)"}
			}
		}
		if h.Token != "" {
			req.Header.Set("Authorization", "Bearer "+h.Token)
		}
	}
	req = req.WithContext(context.WithValue(req.Context(), guardKey{}, g))
	req.Header.Set("User-Agent", "millrace")
	// Without this the library asks for gzip, and a small answer may become a thousand times as large.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := clientFor(req).Do(req)
	var urlErr *url.Error
	var exposed *exposedError
	if errors.As(err, &exposed) {
		return nil, exposed
	}
	var strange *addressError
	if errors.As(err, &strange) {
		return nil, fmt.Errorf("%s did not answer as a hub does: %w", h.shownEndpoint(), strange)
	}
	if errors.As(err, &urlErr) { // its text repeats the address, which may hold a signed query
		err = urlErr.Err
		var op *net.OpError
		isDial := errors.As(err, &op) && op.Op == "dial"
		if !isDial || h.reached.Load() {
			err = &cutError{err}
		}
		if isDial {
			return nil, fmt.Errorf("%s cannot be reached: %w: check the network and HF_ENDPOINT", server, err)
		}
		return nil, fmt.Errorf("%s: %w", server, err)
	}
	h.reached.Store(err == nil)
	if err != nil {
		return nil, err
	}
	if how := resp.Header.Get("Content-Encoding"); how != "" && !strings.EqualFold(how, "identity") {
		resp.Body.Close()
		return nil, fmt.Errorf("%s did not answer as a hub does: what it sends is compressed (%.20q), "+
			"which was not asked for", server, how)
	}
	return resp, nil
}

// clientFor is the client for a request.
func clientFor(req *http.Request) *http.Client {
	if req.Method == http.MethodGet {
		return client
	}
	return sender
}

// proxyFor is the proxy that a request goes through; nil for none, or for one whose address is an error.
func proxyFor(req *http.Request) *url.URL {
	t, ok := clientFor(req).Transport.(*http.Transport)
	if !ok || t.Proxy == nil {
		return nil
	}
	proxy, _ := t.Proxy(req)
	return proxy
}

// overHTTPVariable is the name in the environment of Hub.TokenOverHTTP.
const overHTTPVariable = "MILLRACE_HF_TOKEN_OVER_HTTP"

// exposedError is why the token is not sent. Another try does not help.
type exposedError struct{ endpoint, more string }

func (e *exposedError) Error() string {
	return fmt.Sprintf("%s is not https, so others could read the token on its way: use an https address in HF_ENDPOINT, "+
		"or leave the token out (unset HF_TOKEN, set HF_HUB_DISABLE_IMPLICIT_TOKEN=1)%s", e.endpoint, e.more)
}

// cutError is a connection that broke: it is worth another try. One that cannot be made to begin with is not.
type cutError struct{ error }

func (e *cutError) Unwrap() error { return e.error }

// passingError is an error that the same request may not have next time, later than a moment from now.
type passingError struct{ error }

func (e *passingError) Unwrap() error { return e.error }

// refusal is an answer other than the expected one.
type refusal struct {
	status int
	code   string        // X-Error-Code
	after  time.Duration // Retry-After
	text   string
}

func (r *refusal) Error() string { return r.text }

// IsAbsent reports whether an error says that there is no such repository or revision, or that it is hidden.
func IsAbsent(err error) bool {
	var r *refusal
	return errors.As(err, &r) && (r.status == http.StatusNotFound || r.code == "RepoNotFound" || r.code == "RevisionNotFound")
}

// refused says what an answer means.
func (h *Hub) refused(r Repo, resp *http.Response) error {
	ref := &refusal{status: resp.StatusCode, code: resp.Header.Get("X-Error-Code")}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		ref.after = time.Duration(min(max(s, 0), 60)) * time.Second
	}
	what := r.Kind.name()
	isDenied := ref.status == http.StatusUnauthorized || ref.status == http.StatusForbidden
	page := h.shownEndpoint() + strings.TrimPrefix(h.address(r), h.Endpoint)
	switch {
	case ref.code == "GatedRepo" && h.Token == "":
		ref.text = fmt.Sprintf("the %s is gated: accept its terms at %s, and set HF_TOKEN", what, page)
	case ref.code == "GatedRepo":
		ref.text = fmt.Sprintf("the %s is gated: accept its terms at %s with the account of your token", what, page)
	case ref.code == "RevisionNotFound":
		ref.text = fmt.Sprintf("%s has no revision %q of it: see the branches and tags at %s", h.shownEndpoint(), r.Revision, page)
	case ref.code == "EntryNotFound":
		ref.text = fmt.Sprintf("%s lists the file and does not have it", h.shownEndpoint())
	case ref.code == "RepoNotFound" && h.Token == "":
		ref.text = fmt.Sprintf("%s has no such %s: check the name; if it is private, set HF_TOKEN", h.shownEndpoint(), what)
	case ref.code == "RepoNotFound":
		ref.text = fmt.Sprintf("%s has no such %s for your token: check the name, and what the token may read", h.shownEndpoint(), what)
	case isDenied && h.Token == "":
		ref.text = fmt.Sprintf("%s answers %s: check the name; if the %s is private or gated, accept its terms at %s and set HF_TOKEN",
			h.shownEndpoint(), resp.Status, what, page)
	case isDenied:
		ref.text = fmt.Sprintf("%s answers %s: check the name, and what HF_TOKEN may read; a gated %s needs its terms accepted at %s",
			h.shownEndpoint(), resp.Status, what, page)
	case ref.status == http.StatusNotFound:
		ref.text = fmt.Sprintf("%s does not have it: check the name and the revision %q", h.shownEndpoint(), r.Revision)
	default:
		ref.text = fmt.Sprintf("%s answers %s", h.shownEndpoint(), resp.Status)
	}
	return ref
}

// IsPassing reports whether an error is of the network or the server, so that what was asked for may be right and
// another try may have it.
func IsPassing(err error) bool {
	var reached *net.OpError
	var later *passingError
	return isPassing(err) || errors.As(err, &reached) || errors.As(err, &later)
}

// isPassing reports whether an error may be gone in a moment.
func isPassing(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		return r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout || r.status >= 500
	}
	var cut *cutError
	return errors.As(err, &cut)
}

// maxFailures bounds the failures in a row.
const maxFailures = 4

// retry does something until it succeeds, fails for good, or has failed maxFailures times without getting on, with
// longer pauses each time.
func (h *Hub) retry(ctx context.Context, attempt func() (gotOn bool, err error)) error {
	for failures := 0; ; {
		gotOn, err := attempt()
		if err == nil || !isPassing(err) || ctx.Err() != nil {
			return err
		}
		if gotOn {
			failures = 0
		}
		if failures++; failures >= maxFailures {
			return err
		}
		wait := h.pause << (failures - 1)
		if r := (*refusal)(nil); errors.As(err, &r) && h.pause > 0 {
			wait = max(wait, r.after)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Bounds of one answer of the API. That to an upload in parts has up to 10,000 signed addresses; a page of a listing
// has 1,000 entries at huggingface.co, and all of them elsewhere.
const (
	maxAnswerBytes  = 16 << 20
	maxAnswerValues = 200_000
	maxPageBytes    = 64 << 20
)

// decoder reads an answer a part at a time.
type decoder func(*json.Decoder) error

// ask reads an answer of the API into out, which may be a decoder, and returns where the next page is, "" at the end.
func (h *Hub) ask(ctx context.Context, r Repo, address string, out any) (next string, err error) {
	err = h.retry(ctx, func() (bool, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer fault.AfterFunc(answerAfter, func() {
			cancel(fmt.Errorf("the answer was not whole after %v", answerAfter))
		}).Stop()
		resp, err := h.get(ctx, address, 0)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, h.refused(r, resp)
		}
		if err := h.readAnswer(ctx, cancel, resp, out); err != nil {
			return false, err
		}
		next, err = nextPage(resp)
		return false, err
	})
	return next, err
}

// readAnswer reads the JSON of an answer into out; cancel ends the request if no more comes.
func (h *Hub) readAnswer(ctx context.Context, cancel context.CancelCauseFunc, resp *http.Response, out any) error {
	decode, most := decoder(nil), int64(maxAnswerBytes)
	if pages, ok := out.(decoder); ok {
		decode, most = pages, maxPageBytes
	}
	body := &networkReader{newStallReader(resp.Body, cancel, noData), nil}
	limited := &io.LimitedReader{R: body, N: most + 1}
	var err error
	if decode != nil {
		d := json.NewDecoder(limited)
		if err = decode(d); err == nil {
			err = atEnd(d)
		}
	} else {
		var doc []byte
		if doc, err = io.ReadAll(limited); err == nil && limited.N > 0 {
			err = unmarshal(doc, out)
		}
	}
	switch {
	case body.err != nil:
		return fmt.Errorf("%s: %w", h.shownEndpoint(), &cutError{cmp.Or(context.Cause(ctx), body.err)})
	case limited.N <= 0:
		return fmt.Errorf("%s did not answer as a hub does: more than %d bytes", h.shownEndpoint(), most)
	case err != nil:
		return fmt.Errorf("%s did not answer as a hub does: %w", h.shownEndpoint(), err)
	}
	return nil
}

// unmarshal is json.Unmarshal of a document with few values: two bytes on the way can be a hundred in memory.
func unmarshal(doc []byte, out any) error {
	if n := bytes.Count(doc, []byte{','}); n > maxAnswerValues { // some of them in texts
		return fmt.Errorf("it has about %d values, more than %d", n, maxAnswerValues)
	}
	return json.Unmarshal(doc, out)
}

// atEnd fails if a document has more in it.
func atEnd(d *json.Decoder) error {
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more in the answer than one value")
	}
	return nil
}

// decodeList reads a list; each has to read one element.
func decodeList(d *json.Decoder, each func() error) error {
	if t, err := d.Token(); err != nil {
		return err
	} else if t != json.Delim('[') {
		return errors.New("it has no list where one belongs")
	}
	for d.More() {
		if err := each(); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// nextPage reads the header Link: <ADDRESS>; rel="next". The address is one of the same server, as the token goes
// there.
func nextPage(resp *http.Response) (string, error) {
	for _, link := range resp.Header.Values("Link") {
		_, rest, _ := strings.Cut(link, "<")
		target, params, ok := strings.Cut(rest, ">")
		if !ok || !strings.Contains(strings.ReplaceAll(params, `"`, ""), "rel=next") {
			continue
		}
		next, err := resp.Request.URL.Parse(target)
		if err != nil {
			return "", fmt.Errorf("the address of the next page is %q: %w", target, err)
		}
		// Mirrors name the hub that they mirror.
		next.Scheme, next.Host, next.User = resp.Request.URL.Scheme, resp.Request.URL.Host, nil
		return next.String(), nil
	}
	return "", nil
}

// Bounds of a connection. Slow ones bring some 1 MiB in five minutes.
const (
	stallAfter  = time.Minute // of silence
	rateWindow  = 5 * time.Minute
	leastBytes  = 128 << 10        // of a body that does not end, in each window
	answerAfter = 10 * time.Minute // of an answer of the API as a whole
)

// stallReader ends a request whose body does not move any more, or moves too slowly: a server that sends a byte a minute
// is not to keep a download for days.
type stallReader struct {
	body   io.Reader
	timer  *time.Timer
	window *time.Timer
	got    atomic.Int64 // in this window
}

// noData is the error of an answer that stops coming.
const noData = "no data came for a minute"

func newStallReader(body io.Reader, cancel context.CancelCauseFunc, stall string) *stallReader {
	s := &stallReader{body: body, timer: fault.AfterFunc(stallAfter, func() { cancel(errors.New(stall)) })}
	s.window = fault.AfterFunc(rateWindow, func() {
		if n := s.got.Swap(0); n < leastBytes {
			cancel(fmt.Errorf("%d bytes in %v are too few", n, rateWindow))
			return
		}
		s.window.Reset(rateWindow)
	})
	return s
}

// stop ends the watch.
func (s *stallReader) stop() {
	s.timer.Stop()
	s.window.Stop()
}

func (s *stallReader) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.got.Add(int64(n))
	s.timer.Reset(stallAfter)
	if err != nil {
		s.stop()
	}
	return n, err
}
