package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/millrace/millrace/internal/outside"
)

// mostRedirects bounds those that are followed, on the same host.
const mostRedirects = 3

// mostAnswerBytes bounds what is read of an answer, so that its connection ends well.
const mostAnswerBytes = 64 << 10

// call posts an event to the web hook, and tries again where that may help.
func (o *outlet) call(ctx context.Context, doc []byte) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, Timeout: o.limits.Hook, CheckRedirect: sameHost}
	for try := 0; ; try++ {
		mayDoLater, err := o.post(ctx, client, doc)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errNoTime
		case !mayDoLater || try == len(o.limits.Waits):
			return err
		}
		timer := time.NewTimer(o.limits.Waits[try])
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w; before that: %w", errNoTime, err)
		}
	}
}

// sameHost refuses a redirect to another host, or from https to http: an event has the name of a run, and the address
// of the hook is a secret. Go turns a POST into a GET for the redirects 301 to 303, which would deliver nothing.
func sameHost(next *http.Request, before []*http.Request) error {
	first := before[0]
	switch {
	case next.URL.Host != first.URL.Host || next.URL.Scheme != first.URL.Scheme:
		return errors.New("the server redirects to another one: name the address that it means")
	case next.Method != http.MethodPost:
		return errors.New("the server redirects to a page: name the address of the hook")
	case len(before) > mostRedirects:
		return errors.New("the server redirects too often: name the address that it means")
	}
	return nil
}

// post calls the hook once. After an error it says whether the same call may do later.
func (o *outlet) post(ctx context.Context, client *http.Client, doc []byte) (mayDoLater bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.address, bytes.NewReader(doc))
	if err != nil {
		return false, errors.New("url is no address of the web") // err has the address
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "millrace")
	answer, err := client.Do(r)
	if err != nil {
		return true, outside.CallError(err, o.limits.Hook)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, mostAnswerBytes))
	if answer.StatusCode/100 == 2 {
		return false, nil
	}
	mayDoLater = answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests ||
		answer.StatusCode == http.StatusRequestTimeout
	return mayDoLater, fmt.Errorf("the server answered %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
}
