package reward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/outside"
)

// mostInRequest bounds the answers of a request.
const mostInRequest = 32

// mostAnswerBytes bounds what a server may answer for each answer of a request.
const mostAnswerBytes = 64 << 10

// server is a judge that asks a server: it posts a list of answers, and gets a list.
type server struct {
	panel    *Panel
	judge    int
	address  string // may be a secret
	patience time.Duration
	client   *http.Client
	queue    *queue
}

func newServer(p *Panel, i int) (judge, error) {
	spec := &p.specs[i]
	address, err := spec.Address()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxConnsPerHost = spec.Instances(), spec.Instances()
	s := &server{panel: p, judge: i, address: address, patience: spec.Patience(),
		queue: newQueue(spec.Instances(), mostInRequest),
		client: &http.Client{Transport: transport, Timeout: spec.Patience(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	p.working.Go(func() { s.queue.deal(p.ctx) })
	for n := range spec.Instances() {
		p.working.Go(func() { s.work(p.ctx, n) })
	}
	return s, nil
}

func (s *server) ask(q *question) { s.queue.add(q) }
func (s *server) close()          { s.client.CloseIdleConnections() }

// work asks questions until ctx ends, those that wait together.
func (s *server) work(ctx context.Context, worker int) {
	next := s.queue.next[worker]
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-next:
			all := []*question{q}
			for range len(next) {
				all = append(all, <-next)
			}
			s.request(ctx, all)
			for range all {
				s.queue.done(worker)
			}
		}
	}
}

// request settles questions. Those that fail together are asked for by themselves.
func (s *server) request(ctx context.Context, all []*question) {
	got, cause, err := s.try(ctx, all)
	for _, q := range all {
		switch of, ok := got[q.sheet.ID]; {
		case ctx.Err() != nil:
			return
		case ok:
			s.panel.settle(q, of.verdict, func() string { return of.detail })
		case len(all) > 1:
			s.request(ctx, []*question{q})
		default:
			s.panel.settle(q, null(cause), err.Error)
		}
	}
}

// try posts questions, and once more where the server has not begun to judge them. A question that the answers lack has
// the cause and the error.
func (s *server) try(ctx context.Context, all []*question) (got map[int64]said, cause Cause, err error) {
	body := []byte("[")
	for i, q := range all {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, q.line()...)
	}
	body = append(body, ']')
	for try := 0; ; try++ {
		text, mayTry, cause, err := s.post(ctx, body, len(all))
		if err == nil {
			return answersOf(text, all)
		}
		if !mayTry || try == 1 {
			return nil, cause, err
		}
	}
}

// post calls the server. After an error it says whether another call is safe.
func (s *server) post(ctx context.Context, body []byte, n int) (text []byte, mayTry bool, cause Cause, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, bytes.NewReader(body))
	if err != nil {
		return nil, false, Refused, errors.New("url is no address of the web") // err has the address
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "millrace")
	answer, err := s.client.Do(r)
	if err == nil {
		defer answer.Body.Close()
		most := int64(n)*mostAnswerBytes + mostLineBytes
		text, err = io.ReadAll(io.LimitReader(answer.Body, most+1))
		switch {
		case err != nil:
		case answer.StatusCode != http.StatusOK:
			mayTry = answer.StatusCode == http.StatusServiceUnavailable || answer.StatusCode == http.StatusTooManyRequests
			return nil, mayTry, Refused, fmt.Errorf("the server answered %d %s", answer.StatusCode,
				http.StatusText(answer.StatusCode))
		case int64(len(text)) > most:
			return nil, false, TooLong, fmt.Errorf("the server answered with more than %d bytes for %d answers", most, n)
		default:
			return text, false, Scored, nil
		}
	}
	var dial *net.OpError
	mayTry = errors.As(err, &dial) && dial.Op == "dial"
	if timed := (interface{ Timeout() bool })(nil); errors.As(err, &timed) && timed.Timeout() {
		return nil, false, TimedOut, fmt.Errorf("the server has not answered in %v", s.patience)
	}
	return nil, mayTry, Refused, outside.CallError(err, s.patience)
}

// answersOf reads a server's list.
func answersOf(text []byte, all []*question) (got map[int64]said, cause Cause, err error) {
	var list []json.RawMessage
	if budget.Unmarshal(text, &list) != nil {
		again := quoteNonFinite(text)
		if again == nil || budget.Unmarshal(again, &list) != nil {
			return nil, Malformed, fmt.Errorf("the server answered %s where a list of answers is expected", shown(text))
		}
	}
	asked := map[int64]bool{}
	for _, q := range all {
		asked[q.sheet.ID] = true
	}
	got = map[int64]said{}
	for _, line := range list {
		of, err := parseLine(line)
		if err != nil {
			return nil, Malformed, err
		}
		if _, twice := got[of.id]; twice || !asked[of.id] {
			return nil, Stray, fmt.Errorf("the server answers id %d, which it was not asked for or has answered already", of.id)
		}
		got[of.id] = of
	}
	return got, Malformed, errors.New("the server's list lacks the answer that it was asked for")
}
